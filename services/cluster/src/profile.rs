//! Serves `/debug/pprof/profile`: samples of the stacks of this process, in pprof's format. Builds
//! with the feature `profiling` have it; others say that they do not.

use axum::{http::StatusCode, response::Response};

/// Parameters of a request.
#[derive(Debug, PartialEq, Eq)]
struct Parameters {
    seconds: u32,
    frequency: u32,
}

impl Parameters {
    /// Longest time of sampling, in seconds.
    const SECONDS_MAX: u32 = 600;

    fn parse(query: &str) -> Result<Self, String> {
        let mut parameters = Self { seconds: 10, frequency: 99 };
        for part in query.split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let number = value.parse().map_err(|_| format!("{name} is no number: {value:.20}"))?;
            match name {
                "seconds" => parameters.seconds = number,
                "frequency" => parameters.frequency = number,
                _ => return Err("the parameters are seconds=N and frequency=N".to_owned()),
            }
        }
        if !(1..=Self::SECONDS_MAX).contains(&parameters.seconds) {
            return Err(format!("seconds must be from 1 to {}", Self::SECONDS_MAX));
        }
        Ok(parameters)
    }
}

/// Samples this process, and answers once that has ended. A process is sampled once at a time.
pub(crate) async fn serve_profile(query: Option<String>) -> Response {
    match Parameters::parse(query.as_deref().unwrap_or("")) {
        Ok(parameters) => answer(parameters).await,
        Err(error) => refusal(StatusCode::BAD_REQUEST, &error),
    }
}

fn refusal(status: StatusCode, text: &str) -> Response {
    axum::response::IntoResponse::into_response((status, format!("{text}\n")))
}

#[cfg(not(feature = "profiling"))]
async fn answer(_: Parameters) -> Response {
    let text = "this build takes no profiles: build with --features profiling";
    refusal(StatusCode::NOT_IMPLEMENTED, text)
}

#[cfg(feature = "profiling")]
async fn answer(Parameters { seconds, frequency }: Parameters) -> Response {
    use axum::{http::header, response::IntoResponse};
    use tandem_profile::{SampleError, Sampler};
    use tokio::{task::spawn_blocking, time};

    let taken = async {
        let sampler = spawn_blocking(move || Sampler::start(frequency)).await??;
        time::sleep(time::Duration::from_secs(seconds.into())).await;
        // A caller that leaves earlier drops the sampler, which ends it.
        let encoded = spawn_blocking(move || sampler.finish().map(|it| it.encode())).await??;
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(encoded)
    };
    match taken.await {
        Ok(bytes) => ([(header::CONTENT_TYPE, "application/octet-stream")], bytes).into_response(),
        Err(error) => {
            let status = match error.downcast_ref::<SampleError>() {
                Some(SampleError::Busy) => StatusCode::SERVICE_UNAVAILABLE,
                Some(SampleError::Frequency(_)) => StatusCode::BAD_REQUEST,
                _ => StatusCode::INTERNAL_SERVER_ERROR,
            };
            refusal(status, &error.to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_have_defaults_and_limits() {
        let parse = |query| Parameters::parse(query).map(|it| (it.seconds, it.frequency));
        assert_eq!(parse(""), Ok((10, 99)));
        assert_eq!(parse("seconds=3"), Ok((3, 99)));
        assert_eq!(parse("frequency=250&seconds=600"), Ok((600, 250)));
        for wrong in ["seconds=0", "seconds=601", "seconds=x", "seconds", "hertz=1", "seconds=-1"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
