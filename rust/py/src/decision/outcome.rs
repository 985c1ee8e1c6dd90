//! Classifies the failure behind an exception or a status.
//!
//! A failure counts against the worker only if it shows that the worker or the way to it failed: an answer with a status,
//! or an exception of a transport. Everything else is an error of the caller's own code, and the request was given up.

use cachelb::selector::Ending;
use pyo3::exceptions::{
    PyBaseException, PyConnectionError, PyEOFError, PyException, PyOSError, PyTypeError,
    PyValueError,
};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyInt, PyTuple};

use crate::args::type_name;

/// Exceptions of transports that are no `OSError`, as top-level module and class, none of which need be installed. A
/// subclass is one too.
const TRANSPORT: [(&str, &str); 15] = [
    ("aiohttp", "ClientError"),
    ("anthropic", "APIConnectionError"),
    ("anyio", "BrokenResourceError"),
    ("anyio", "EndOfStream"),
    ("grpc", "RpcError"),
    ("h11", "RemoteProtocolError"),
    ("http", "HTTPException"),
    ("httpcore", "NetworkError"),
    ("httpcore", "ProtocolError"),
    ("httpcore", "TimeoutException"),
    ("httpx", "RequestError"),
    ("openai", "APIConnectionError"),
    ("ray", "RayActorError"),
    ("urllib3", "HTTPError"),
    ("websockets", "ConnectionClosed"),
];

/// Those of a connection that was closed which are no `ConnectionError`.
const DISCONNECTS: [(&str, &str); 2] = [
    ("aiohttp", "ServerDisconnectedError"),
    ("httpcore", "RemoteProtocolError"),
];

/// How deep the causes of an exception are looked at, and how many members of a group.
pub const DEPTH: usize = 8;

/// Ending of a request reported to `on_error`.
pub fn classify(error: &Bound<'_, PyAny>) -> PyResult<Ending> {
    if error.is_instance_of::<PyInt>() && !error.is_instance_of::<PyBool>() {
        return of_status(error).ok_or_else(|| {
            PyValueError::new_err(format!(
                "status {error} is not an error: on_error takes 400 to 999 or an exception; use on_complete for success"
            ))
        });
    }
    if !error.is_instance_of::<PyBaseException>() {
        let found = type_name(error);
        return Err(PyTypeError::new_err(format!(
            "on_error takes an exception or an int status, not {found}"
        )));
    }
    Ok(of_exception(error, DEPTH))
}

/// Whether the worker refused the connection or closed it, by the exception itself or one that it was raised from.
pub fn is_disconnect(error: &Bound<'_, PyAny>, depth: usize) -> bool {
    error.is_instance_of::<PyConnectionError>()
        || is_one_of(error, &DISCONNECTS).unwrap_or(false)
        || depth > 0 && (causes(error).iter()).any(|cause| is_disconnect(cause, depth - 1))
}

/// The exceptions that this one was raised from: its cause, the members of a group, and its arguments, as `aiohttp` and
/// `requests` have them. The exception being handled at the time may belong to another request, except in LiteLLM.
fn causes<'py>(error: &Bound<'py, PyAny>) -> Vec<Bound<'py, PyAny>> {
    let module = get(error, "__module__").map_or_else(String::new, |module| module.to_string());
    let names = ["__cause__", "exceptions", "args", "__context__"];
    let names = &names[..3 + usize::from(module.starts_with("litellm."))];
    let found = names.iter().filter_map(|name| get(error, name));
    let found = found.flat_map(|found| match found.cast::<PyTuple>() {
        Ok(members) => members.iter().take(DEPTH).collect(),
        Err(_) => vec![found],
    });
    (found.filter(PyAnyMethods::is_instance_of::<PyBaseException>)).collect()
}

/// An attribute, if there is one that can be read.
fn get<'py>(holder: &Bound<'py, PyAny>, name: &str) -> Option<Bound<'py, PyAny>> {
    holder.getattr_opt(name).ok().flatten()
}

fn of_status(status: &Bound<'_, PyAny>) -> Option<Ending> {
    Ending::of_status(status.extract().ok()?)
}

fn of_exception(error: &Bound<'_, PyAny>, depth: usize) -> Ending {
    if !error.is_instance_of::<PyException>() {
        // Cancelled tasks and interrupts: the worker did nothing wrong.
        return Ending::Cancelled;
    }
    // Some clients keep the status on the exception, some on the answer it is about.
    for holder in [Some(error.clone()), get(error, "response")] {
        let Some(holder) = holder else { continue };
        for name in ["status_code", "status"] {
            if let Some(ending) = get(&holder, name).as_ref().and_then(of_status) {
                return ending;
            }
        }
    }
    if is_transport(error).unwrap_or(false) {
        return of_call(error).unwrap_or(Ending::Failed);
    }
    if depth == 0 {
        return Ending::Cancelled;
    }
    (causes(error).iter())
        .map(|inner| of_exception(inner, depth - 1))
        .find(|ending| *ending != Ending::Cancelled)
        .unwrap_or(Ending::Cancelled)
}

/// Whether it is an exception of a transport.
fn is_transport(error: &Bound<'_, PyAny>) -> PyResult<bool> {
    if error.is_instance_of::<PyOSError>() || error.is_instance_of::<PyEOFError>() {
        return Ok(true);
    }
    is_one_of(error, &TRANSPORT)
}

/// Whether its class or one of the bases is one of these.
fn is_one_of(error: &Bound<'_, PyAny>, classes: &[(&str, &str)]) -> PyResult<bool> {
    for class in error.get_type().mro() {
        let module = class.getattr(intern!(class.py(), "__module__"))?;
        let name = class.getattr(intern!(class.py(), "__name__"))?;
        let (module, name): (String, String) = (module.extract()?, name.extract()?);
        let top = module.split('.').next().unwrap_or_default();
        if classes.contains(&(top, &name)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Ending of a gRPC call, `None` if it is no such exception.
fn of_call(error: &Bound<'_, PyAny>) -> Option<Ending> {
    let code = error.getattr_opt("code").ok()??;
    let name: String = code.call0().ok()?.getattr("name").ok()?.extract().ok()?;
    Some(match &*name {
        "CANCELLED" => Ending::Cancelled,
        "RESOURCE_EXHAUSTED" => Ending::Backpressure,
        "INVALID_ARGUMENT"
        | "NOT_FOUND"
        | "ALREADY_EXISTS"
        | "PERMISSION_DENIED"
        | "UNAUTHENTICATED"
        | "FAILED_PRECONDITION"
        | "OUT_OF_RANGE" => Ending::Client,
        _ => Ending::Failed,
    })
}

/// The seconds that the answer an exception is about asks to wait, `None` if it does not.
pub fn retry_after(error: &Bound<'_, PyAny>) -> Option<f64> {
    let holder = get(error, "response").filter(|answer| !answer.is_none());
    let headers = get(holder.as_ref().unwrap_or(error), "headers")?;
    let module = error
        .py()
        .import(intern!(error.py(), "cachelb.answers"))
        .ok()?;
    module
        .call_method1("retry_after", (headers,))
        .ok()?
        .extract()
        .ok()?
}
