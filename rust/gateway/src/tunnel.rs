//! Connections that became another protocol's, such as `WebSocket`: bytes pass in both directions.

use std::time::Duration;

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, split};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::shared::Phase;

/// Bytes that are read at a time, in each direction.
const BUFFER: usize = 16 << 10;

/// Passes bytes until either side ends, or none passes for too long, or the server ends.
pub(crate) async fn pass(
    client: OnUpgrade,
    worker: OnUpgrade,
    idle: Duration,
    mut phase: watch::Receiver<Phase>,
) {
    let (Ok(client), Ok(worker)) = tokio::join!(client, worker) else {
        return;
    };
    let (mut from_client, mut to_client) = split(TokioIo::new(client));
    let (mut from_worker, mut to_worker) = split(TokioIo::new(worker));
    let (mut up, mut down) = (vec![0; BUFFER], vec![0; BUFFER]);
    let passing = async {
        loop {
            let passed = timeout(idle, async {
                tokio::select! {
                    read = from_client.read(&mut up) => match read? {
                        0 => Ok(false),
                        count => to_worker.write_all(&up[..count]).await.map(|()| true),
                    },
                    read = from_worker.read(&mut down) => match read? {
                        0 => Ok(false),
                        count => to_client.write_all(&down[..count]).await.map(|()| true),
                    },
                }
            });
            if !matches!(passed.await, Ok(Ok::<bool, std::io::Error>(true))) {
                return;
            }
        }
    };
    tokio::select! {
        () = passing => {}
        _ = phase.wait_for(|phase| *phase == Phase::Cut) => {}
    }
    // The last bytes are on their way.
    let _ = tokio::join!(to_client.shutdown(), to_worker.shutdown());
}
