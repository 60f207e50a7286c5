//! Timeline in a real browser, Debian's package `chromium`. If there is none, the test says so. The
//! pictures stay in the folder `tmp/timeline` of the target folder.
#![allow(clippy::unwrap_used)]

mod devtools;

use std::fs;
use std::path::Path;

use devtools::Browser;
use serde_json::{Value, json};
use tandem_overlap::{Options, Selection, analyze_with, html, read};

const TRACES: [&str; 3] = [
    include_str!("../fixtures/hand_counted.otlp.json"),
    include_str!("../fixtures/parallel.otlp.json"),
    include_str!("../fixtures/sequential.otlp.json"),
];

fn page(traces: &[&str]) -> String {
    let options = Options::new(Selection::default(), 100);
    html(&analyze_with(read("traces", traces.concat().as_bytes()), options))
}

/// Writes a page and opens it.
fn open(browser: &mut Browser, path: &Path, traces: &[&str], fragment: &str) {
    fs::write(path, page(traces)).unwrap();
    let url = format!("file://{}{fragment}", path.display());
    browser.call("Page.navigate", json!({"url": url}));
    browser.wait_for(
        "document.readyState === 'complete' && !!document.querySelector('#view[aria-label]')",
    );
}

/// Checks that lanes and band have one scale: neither canvas is stretched.
fn is_not_stretched(browser: &mut Browser) {
    for canvas in ["band", "lanes"] {
        let stretched = format!(
            "[$('{canvas}').width, Math.round($('{canvas}').clientWidth * devicePixelRatio)]"
        );
        let widths = browser.evaluate(&stretched);
        assert_eq!(widths[0], widths[1], "{canvas}");
    }
}

/// Returns the page's description of itself.
fn label(browser: &mut Browser) -> String {
    browser.evaluate("$('view').getAttribute('aria-label')").as_str().unwrap().to_owned()
}

fn number(browser: &mut Browser, expression: &str) -> f64 {
    browser.evaluate(expression).as_f64().unwrap()
}

/// Returns a place on the screen, by an expression for a list of two numbers.
fn place(browser: &mut Browser, expression: &str) -> (f64, f64) {
    let place = browser.evaluate(expression);
    (place[0].as_f64().unwrap(), place[1].as_f64().unwrap())
}

/// Returns the place of the time `ns` in the row of the span called `name`.
fn place_of(browser: &mut Browser, name: &str, ns: u64) -> (f64, f64) {
    place(
        browser,
        &format!(
            "(() => {{ const row = plan.rows.find(row => row.spans.some(s => s.name === '{name}')), \
             box = $('lanes').getBoundingClientRect(); \
             return [box.left + xOf({ns}), box.top + row.y - $('view').scrollTop + ROW / 2]; }})()"
        ),
    )
}

#[test]
fn timeline_loads_draws_zooms_and_is_reached_by_keyboard() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("timeline");
    fs::create_dir_all(&folder).unwrap();
    let Some(mut browser) = Browser::start(&folder) else {
        eprintln!("skipped: no chromium on this machine, so the timeline was not looked at");
        return;
    };
    let fragment = format!("#trace={:032x}", 0xa1);
    open(&mut browser, &folder.join("timeline.html"), &TRACES, &fragment);

    shows_lanes_and_band(&mut browser);
    zooms_and_pans(&mut browser);
    tells_about_spans(&mut browser);
    goes_by_keyboard(&mut browser);
    is_legible_in_light_and_dark(&mut browser, &folder);
    draws_the_pictures_of_the_docs(&mut browser, &folder);

    let (errors, addresses) = browser.complaints();
    assert!(errors.is_empty(), "{errors:?}");
    assert!(
        !addresses.is_empty() && addresses.iter().all(|one| one.starts_with("file:")),
        "{addresses:?}"
    );
}

fn shows_lanes_and_band(browser: &mut Browser) {
    // The lanes are two threads of the executor and three workers.
    let label = label(browser);
    assert!(
        label.contains("block 7") && label.contains("7 spans in 5 lanes of 2 services"),
        "{label}"
    );
    assert_eq!(browser.evaluate("$('pick').options.length"), 3);
    // By hand: 35 µs of both, 20 of A alone, 25 of B alone, and neither in the rest of 100.
    for (state, ns) in [("both", 35_000), ("a", 20_000), ("b", 25_000), ("none", 20_000)] {
        let sum = format!(
            "plan.band.filter(p => p.state === '{state}').reduce((sum, p) => sum + p.end - p.start, 0)"
        );
        assert_eq!(browser.evaluate(&sum), ns, "{state}");
    }
    // The pixels must agree.
    for (ns, color) in [(17_000, "both"), (7_000, "a"), (80_000, "b"), (97_000, "none")] {
        let drawn = browser.evaluate(&format!(
            "[...$('band').getContext('2d').getImageData(Math.round(xOf({ns}) * devicePixelRatio), \
             Math.round((BAND_TOP + 2) * devicePixelRatio), 1, 1).data].slice(0, 3)"
        ));
        assert_eq!(drawn, rgb(browser, color), "{color} at {ns} ns");
    }
}

/// Returns a colour of the page as three numbers.
fn rgb(browser: &mut Browser, name: &str) -> Value {
    browser.evaluate(&format!("colors['{name}'].match(/[0-9a-f]{{2}}/g).map(x => parseInt(x, 16))"))
}

fn zooms_and_pans(browser: &mut Browser) {
    let shown = "to - from";
    let all = number(browser, shown);
    assert!((all - 102_000.0).abs() < 1.0, "the payload and a margin: {all}");
    let middle = place_of(browser, "payload processor", 50_000);
    browser.mouse("mouseWheel", middle, json!({"deltaX": 0, "deltaY": -300}));
    let closer = number(browser, shown);
    assert!(closer < all * 0.8, "the wheel zooms in: {closer}");
    let under =
        number(browser, &format!("nsOf({} - $('lanes').getBoundingClientRect().left)", middle.0));
    assert!((under - 50_000.0).abs() < 500.0, "what is under the mouse stays there: {under}");
    assert!(label(browser).contains("shown from"));

    let left = number(browser, "from");
    browser.mouse("mousePressed", middle, json!({"button": "left", "clickCount": 1}));
    browser.mouse(
        "mouseMoved",
        (middle.0 - 100.0, middle.1),
        json!({"button": "left", "buttons": 1}),
    );
    browser.mouse("mouseReleased", (middle.0 - 100.0, middle.1), json!({"button": "left"}));
    assert!(number(browser, "from") > left, "dragged to the left, later times show");

    browser.press("0");
    assert_eq!(number(browser, shown), all, "all of it again");
}

fn tells_about_spans(browser: &mut Browser) {
    let at = place_of(browser, "payload processor", 40_000);
    browser.mouse("mouseMoved", at, json!({}));
    let tip = browser.evaluate("$('tip').style.display + $('tip').textContent");
    let tip = tip.as_str().unwrap();
    assert!(tip.starts_with("block") && tip.contains("payload processor"), "{tip}");
    assert!(tip.contains("55.0 µs (91.7 %) in 2 intervals"), "busy 55 of 60: {tip}");
    let band = place(
        browser,
        "(() => { const box = $('band').getBoundingClientRect(); \
         return [box.left + xOf(17000), box.top + BAND_TOP + 5]; })()",
    );
    browser.mouse("mouseMoved", band, json!({}));
    let tip = browser.evaluate("$('tip').textContent");
    assert!(tip.as_str().unwrap().contains("both sides busy"), "{tip}");
}

fn goes_by_keyboard(browser: &mut Browser) {
    browser.mouse("mouseMoved", (1.0, 1.0), json!({}));
    let reached = (0..40).any(|_| {
        browser.press("Tab");
        browser.evaluate("document.activeElement.id") == "view"
    });
    assert!(reached, "the spans are reached with the tab key");
    let all = number(browser, "to - from");
    browser.press("+");
    assert!(number(browser, "to - from") < all);
    let left = number(browser, "from");
    browser.press("ArrowRight");
    assert!(number(browser, "from") > left);
    browser.press("0");
    browser.press("j");
    assert_eq!(browser.evaluate("hover.name"), "on_new_payload", "the first row");
    browser.press("j");
    assert_ne!(browser.evaluate("hover.name"), "on_new_payload");
    browser.press("k");
    let tip = browser.evaluate("$('tip').style.display + $('tip').textContent");
    assert!(tip.as_str().unwrap().starts_with("blockon_new_payload"), "{tip}");
    browser.press("j");
    browser.press("Enter");
    let (span, shown) = (number(browser, "hover.end - hover.start"), number(browser, "to - from"));
    assert!(shown > span && shown < span * 1.3, "{shown} for {span}");
    browser.press("Escape");
    assert_eq!(browser.evaluate("$('tip').style.display"), "none");
    let before = label(browser);
    browser.press("[");
    browser.press("]");
    browser.press("]");
    assert_ne!(label(browser), before, "another payload");
}

fn is_legible_in_light_and_dark(browser: &mut Browser, folder: &Path) {
    let mut backgrounds = Vec::new();
    for scheme in ["light", "dark"] {
        let feature = json!({"name": "prefers-color-scheme", "value": scheme});
        browser.call("Emulation.setEmulatedMedia", json!({"features": [feature]}));
        browser.evaluate("readColors(), draw()");
        // WCAG 2.1 demands at least 4.5 for text.
        let pairs = [
            ("ink", "bg"),
            ("ink", "panel"),
            ("soft", "bg"),
            ("soft", "panel"),
            ("faint", "bg"),
            ("faint", "panel"),
            ("on", "a"),
            ("on", "b"),
            ("span-ink", "span"),
        ];
        for (ink, ground) in pairs {
            let (ink_rgb, ground_rgb) = (rgb(browser, ink), rgb(browser, ground));
            let ratio = contrast(&ink_rgb, &ground_rgb);
            assert!(ratio >= 4.5, "{ink} on {ground} in {scheme}: {ratio:.2}");
        }
        backgrounds.push(browser.evaluate("getComputedStyle(document.body).backgroundColor"));
        for (trace, name) in [(0xa1, "hand_counted"), (0xb1, "parallel"), (0xb2, "sequential")] {
            browser.evaluate(&format!(
                "open(DATA.payloads.findIndex(p => p.report.trace_id === '{trace:032x}'))"
            ));
            let bytes = browser.screenshot(&folder.join(format!("{name}-{scheme}.png")));
            assert!(bytes > 10_000, "an empty picture: {bytes} bytes");
            is_not_stretched(browser);
        }
    }
    assert_ne!(backgrounds[0], backgrounds[1]);
    eprintln!("pictures: {}", folder.display());
}

/// Draws the pictures of docs/tracing.md, to be copied there when the page looks different.
fn draws_the_pictures_of_the_docs(browser: &mut Browser, folder: &Path) {
    let feature = json!({"name": "prefers-color-scheme", "value": "light"});
    browser.call("Emulation.setEmulatedMedia", json!({"features": [feature]}));
    let size = json!({"width": 1100, "height": 480, "deviceScaleFactor": 1, "mobile": false});
    browser.call("Emulation.setDeviceMetricsOverride", size);
    for (name, traces, verdict) in
        [("parallel", TRACES[1], "PARALLEL"), ("sequential", TRACES[2], "SEQUENTIAL")]
    {
        open(browser, &folder.join(format!("{name}.html")), &[traces], "");
        assert_eq!(browser.evaluate("$('verdict').textContent"), verdict);
        browser.screenshot(&folder.join(format!("{name}.png")));
        is_not_stretched(browser);
    }
}

/// Returns the contrast of two colours by WCAG 2.1.
fn contrast(a: &Value, b: &Value) -> f64 {
    let luminance = |color: &Value| -> f64 {
        let part = |at: usize| {
            let part = color[at].as_f64().unwrap() / 255.0;
            if part <= 0.04045 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * part(0) + 0.7152 * part(1) + 0.0722 * part(2)
    };
    let (a, b) = (luminance(a), luminance(b));
    (a.max(b) + 0.05) / (a.min(b) + 0.05)
}
