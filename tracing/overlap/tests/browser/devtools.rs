//! Headless Chromium, driven over its DevTools protocol: JSON in a WebSocket.
//!
//! <https://chromedevtools.github.io/devtools-protocol/>, RFC 6455

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

/// Names of the browser's executable.
const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome-stable", "google-chrome"];
/// Maximum wait for any event.
const PATIENCE: Duration = Duration::from_secs(60);

/// Browser with one page, killed when dropped.
pub struct Browser {
    // This field is dropped first, and so tells the browser to end.
    _closing: Closing,
    _process: Process,
    socket: TcpStream,
    calls: u64,
    /// Events since the last query.
    events: Vec<Value>,
}

impl Browser {
    /// Starts a browser. Returns `None` if there is none on this machine.
    pub fn start(folder: &Path) -> Option<Self> {
        let name = NAMES.into_iter().find(|name| {
            let version = Command::new(name).arg("--version").stderr(Stdio::null()).output();
            version.is_ok_and(|output| output.status.success())
        })?;
        let profile = folder.join(format!("profile-{}", std::process::id()));
        let child = Command::new(name)
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-quic",
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
                "--disable-dev-shm-usage",
                "--window-size=1280,800",
                "--remote-debugging-port=0",
            ])
            .arg(format!("--user-data-dir={}", profile.display()))
            .arg("about:blank")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let process = Process { child, profile };
        let (port, path) = page(&process.profile);
        let socket = upgrade(port, &path);
        let closing = Closing(socket.try_clone().unwrap());
        let (calls, events) = (0, Vec::new());
        let mut browser = Self { _closing: closing, _process: process, socket, calls, events };
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        Some(browser)
    }

    /// Calls a method and returns its result.
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        self.calls += 1;
        let request = json!({"id": self.calls, "method": method, "params": params});
        send(&mut self.socket, request.to_string().as_bytes());
        loop {
            let mut message: Value = serde_json::from_slice(&receive(&mut self.socket)).unwrap();
            if message["id"] == self.calls {
                assert!(message["error"].is_null(), "{method}: {message}");
                return message["result"].take();
            }
            self.events.push(message);
        }
    }

    /// Returns the value of an expression in the page.
    pub fn evaluate(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "returnByValue": true});
        let mut answer = self.call("Runtime.evaluate", params);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].take()
    }

    /// Waits until an expression in the page is true.
    pub fn wait_for(&mut self, expression: &str) {
        let started = Instant::now();
        while self.evaluate(expression) != true {
            assert!(started.elapsed() < PATIENCE, "{expression} does not come true");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Presses a key, as a user would.
    pub fn press(&mut self, key: &str) {
        let code = match key {
            "Tab" => 9,
            "Enter" => 13,
            "Escape" => 27,
            "ArrowLeft" => 37,
            "ArrowRight" => 39,
            _ => 0,
        };
        for kind in ["keyDown", "keyUp"] {
            let mut params =
                json!({"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code});
            if key.chars().count() == 1 && kind == "keyDown" {
                params["text"] = json!(key);
            }
            self.call("Input.dispatchKeyEvent", params);
        }
        self.settle();
    }

    /// Sends a mouse event at a place. `more` holds further fields of the event.
    pub fn mouse(&mut self, kind: &str, (x, y): (f64, f64), more: Value) {
        let mut params = json!({"type": kind, "x": x, "y": y});
        for (key, value) in more.as_object().unwrap() {
            params[key] = value.clone();
        }
        self.call("Input.dispatchMouseEvent", params);
        self.settle();
    }

    /// Waits until the requested change is drawn.
    fn settle(&mut self) {
        let two_frames = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))";
        let params = json!({"expression": two_frames, "awaitPromise": true});
        self.call("Runtime.evaluate", params);
    }

    /// Saves a picture of the page, and returns its size in bytes.
    pub fn screenshot(&mut self, path: &Path) -> usize {
        self.settle();
        let answer = self.call("Page.captureScreenshot", json!({"format": "png"}));
        let png = BASE64_STANDARD.decode(answer["data"].as_str().unwrap()).unwrap();
        assert!(png.starts_with(b"\x89PNG\r\n\x1a\n"));
        fs::write(path, &png).unwrap();
        png.len()
    }

    /// Returns console errors and exceptions since the last call, and the requested addresses.
    pub fn complaints(&mut self) -> (Vec<String>, Vec<String>) {
        let (mut errors, mut addresses) = (Vec::new(), Vec::new());
        for event in self.events.drain(..) {
            let params = &event["params"];
            match event["method"].as_str().unwrap_or_default() {
                "Runtime.exceptionThrown" => errors.push(params["exceptionDetails"].to_string()),
                "Runtime.consoleAPICalled" if params["type"] == "error" => {
                    errors.push(params["args"].to_string());
                }
                "Log.entryAdded" if params["entry"]["level"] == "error" => {
                    errors.push(params["entry"]["text"].to_string());
                }
                "Network.requestWillBeSent" => {
                    addresses.extend(params["request"]["url"].as_str().map(str::to_owned));
                }
                _ => {}
            }
        }
        (errors, addresses)
    }
}

/// Handle that asks the browser to end when dropped, so that its helpers end with it.
struct Closing(TcpStream);

impl Drop for Closing {
    fn drop(&mut self) {
        send(&mut self.0, json!({"id": 0, "method": "Browser.close"}).to_string().as_bytes());
    }
}

/// Running browser and its folder. Both are removed on drop, whatever fails.
struct Process {
    child: Child,
    profile: PathBuf,
}

impl Drop for Process {
    fn drop(&mut self) {
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(5)
            && matches!(self.child.try_wait(), Ok(None))
        {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.profile);
    }
}

/// Returns the DevTools port of a starting browser, and the path of its page.
fn page(profile: &Path) -> (u16, String) {
    let started = Instant::now();
    loop {
        assert!(started.elapsed() < PATIENCE, "the browser does not start");
        std::thread::sleep(Duration::from_millis(50));
        let Ok(said) = fs::read_to_string(profile.join("DevToolsActivePort")) else { continue };
        let Some(port) = said.lines().next().and_then(|port| port.parse().ok()) else { continue };
        let Ok(mut stream) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) else { continue };
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let request = "GET /json/list HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).unwrap();
        let head = head(&mut stream).to_lowercase();
        // The connection stays open although the request asked to close it.
        let length = head.split("content-length:").nth(1).and_then(|rest| rest.lines().next());
        let mut body = vec![0; length.unwrap().trim().parse().unwrap()];
        stream.read_exact(&mut body).unwrap();
        let targets: Value = serde_json::from_slice(&body).unwrap();
        let is_page = |target: &&Value| target["type"] == "page";
        let page = targets.as_array().unwrap().iter().find(is_page);
        let url = page.and_then(|page| page["webSocketDebuggerUrl"].as_str());
        // ws://127.0.0.1:PORT/devtools/page/ID
        if let Some(at) = url.and_then(|url| url.find("/devtools/")) {
            return (port, url.unwrap()[at..].to_owned());
        }
    }
}

fn upgrade(port: u16, path: &str) -> TcpStream {
    let mut socket = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {}\r\n\r\n",
        BASE64_STANDARD.encode([7; 16])
    );
    socket.write_all(request.as_bytes()).unwrap();
    let answer = head(&mut socket);
    assert!(answer.starts_with("HTTP/1.1 101"), "{answer}");
    socket
}

/// Reads the head of an HTTP response.
fn head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.extend(bytes::<1>(stream));
    }
    String::from_utf8(head).unwrap()
}

/// Sends one text frame. Clients must mask. A mask of zeros leaves the bytes unchanged.
fn send(socket: &mut TcpStream, text: &[u8]) {
    let mut frame = vec![0x81, 0x80 | 127];
    frame.extend((text.len() as u64).to_be_bytes());
    frame.extend([0; 4]);
    frame.extend(text);
    // A browser that has ended does not answer, which is noticed there.
    let _ = socket.write_all(&frame);
}

/// Receives one message, of any number of frames.
fn receive(socket: &mut TcpStream) -> Vec<u8> {
    let mut message = Vec::new();
    loop {
        let [first, second] = bytes(socket);
        let length = match second & 0x7f {
            126 => u64::from(u16::from_be_bytes(bytes(socket))),
            127 => u64::from_be_bytes(bytes(socket)),
            short => u64::from(short),
        };
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        socket.read_exact(&mut payload).unwrap();
        // Text frames and their continuations count. Pings and the like are ignored.
        if first & 0x0f <= 2 {
            message.extend(payload);
            if first & 0x80 != 0 {
                return message;
            }
        }
        assert_ne!(first & 0x0f, 8, "the browser closed the connection");
    }
}

fn bytes<const N: usize>(socket: &mut TcpStream) -> [u8; N] {
    let mut bytes = [0; N];
    socket.read_exact(&mut bytes).unwrap();
    bytes
}
