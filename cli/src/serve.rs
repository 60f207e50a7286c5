//! Life of every command that runs services, one or all: it starts them, waits for a signal or a
//! failure, and stops them in order.

use crate::telemetry::TelemetryArgs;
use anyhow::Context;
use std::{
    future::Future,
    num::NonZero,
    os::unix::process::CommandExt as _,
    pin::pin,
    process::{Command, ExitCode},
    time::Duration,
};
use tandem_cluster::role::Process;
use tandem_telemetry::{Telemetry, Traces};
use tokio::{
    runtime::{Builder, Runtime},
    signal::unix::{Signal, SignalKind, signal},
    task::spawn_blocking,
    time::{Instant, timeout, timeout_at},
};
use tracing::{error, info};

/// Longest time for a start that is under way when the signal comes.
const START_END_MAX: Duration = Duration::from_millis(4500);

/// Longest time for the export of traces at the end.
const TELEMETRY_END_MAX: Duration = Duration::from_millis(500);

/// Longest wait for reactor threads that still wait for a service that is gone.
const THREADS_END_MAX: Duration = Duration::from_millis(100);

/// Signals that end a process.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Starts to listen. From now on the signals do not kill the process.
    pub fn listen() -> anyhow::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate()).context("listen for SIGTERM")?,
            interrupt: signal(SignalKind::interrupt()).context("listen for SIGINT")?,
        })
    }

    /// Waits for either signal.
    pub async fn any(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Returns a reactor for the listeners; the work itself runs on other threads.
pub fn reactor() -> anyhow::Result<Runtime> {
    // Two threads on two cores would wake each other more than they help.
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    Builder::new_multi_thread()
        .worker_threads((cores / 2).clamp(1, 2))
        .event_interval(tandem_cluster::EVENT_INTERVAL)
        .enable_all()
        .build()
        .context("start the reactor")
}

/// Runs a future on a new reactor, whose threads are not awaited if they are busy afterwards.
pub fn block_on<T>(future: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let reactor = reactor()?;
    let result = reactor.block_on(future);
    reactor.shutdown_timeout(THREADS_END_MAX);
    result
}

/// Runs services until SIGINT or SIGTERM, or until one fails. `start` starts them in a process,
/// which then has their ports. The process ends at most a second after [`Process::stop_time_max`].
pub fn serve(
    telemetry: TelemetryArgs,
    traces: &Traces,
    start: impl AsyncFnOnce(&Telemetry) -> anyhow::Result<Process>,
) -> anyhow::Result<ExitCode> {
    block_on(async {
        let telemetry = telemetry.start("info", traces)?;
        let ending = live(start(&telemetry)).await?;
        // Traces that are not accepted in time are dropped.
        let end = spawn_blocking(move || telemetry.shutdown());
        let _ = timeout(TELEMETRY_END_MAX, end).await;
        match ending {
            Ending::Code(code) => Ok(code),
            Ending::Anew => Err(begin_anew()),
        }
    })
}

/// How the services of a process ended.
enum Ending {
    /// The process ends with this code.
    Code(ExitCode),
    /// The process begins again with the same arguments.
    Anew,
}

/// Replaces this process by a new one of the same program, arguments and id (execve(2)). Returns the reason
/// if that fails.
fn begin_anew() -> anyhow::Error {
    let mut arguments = std::env::args_os();
    let name = arguments.next();
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return anyhow::Error::new(error).context("find this program"),
    };
    let mut command = Command::new(program);
    if let Some(name) = name {
        command.arg0(name);
    }
    anyhow::Error::new(command.args(arguments).exec()).context("begin anew")
}

async fn live(start: impl Future<Output = anyhow::Result<Process>>) -> anyhow::Result<Ending> {
    let mut signals = Signals::listen()?;
    let mut start = pin!(start);
    let started = tokio::select! {
        started = &mut start => Some(started?),
        () = signals.any() => None,
    };
    let told = Instant::now();
    let Some(mut process) = started else {
        // A database that is being opened is closed again, unless that takes too long.
        return match timeout(START_END_MAX, start).await {
            Ok(Ok(process)) => Ok(Ending::Code(stop(process, told, ExitCode::SUCCESS).await)),
            _ => Ok(Ending::Code(ExitCode::SUCCESS)),
        };
    };
    let anew = process.anew().clone();
    let (code, is_told) = tokio::select! {
        () = signals.any() => (ExitCode::SUCCESS, true),
        () = process.failed() => (ExitCode::FAILURE, false),
    };
    let code = stop(process, Instant::now(), code).await;
    Ok(if anew.is_cancelled() && !is_told { Ending::Anew } else { Ending::Code(code) })
}

/// Stops the services of a process that was told to end at `told`. A service that does not stop in
/// time ends with the process.
async fn stop(mut process: Process, told: Instant, code: ExitCode) -> ExitCode {
    info!("stopping");
    if timeout_at(told + process.stop_time_max(), process.stop()).await.is_err() {
        error!("the services do not end");
        return ExitCode::FAILURE;
    }
    code
}
