//! Streams: messages from the proxy to the exchange, and its replies back, each within its time.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use cachelb_serving::{Event, Host, Picked, Refusal};
use tokio::sync::{mpsc, watch};
use tokio::task;
use tokio::time::{self, timeout, timeout_at};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::LAST_WORDS;
use super::messages::Messages;
use crate::exchange::{Exchange, Question, Step};
use crate::replies;
use crate::shared::Shared;
use crate::wire::{ExternalProcessor, Message, Reply};

/// How a server treats streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Serving,
    /// New ones are refused, and the others may end until then.
    Draining(time::Instant),
    Stopped,
}

/// The service.
#[derive(Debug)]
pub(super) struct Processor<H> {
    pub(super) host: Arc<H>,
    pub(super) shared: Arc<Shared>,
    pub(super) phases: watch::Receiver<Phase>,
}

type Sent = Result<Reply, Status>;

impl<H: Host> Processor<H> {
    /// Refuses a stream before its first message.
    fn refusal(&self) -> Option<Refusal> {
        if *self.phases.borrow() != Phase::Serving {
            let message = "the service is about to stop";
            return Some(Refusal::new(Event::Draining, 503, message, Some(1.0)));
        }
        let message = "too many requests are open";
        let refusal = || Refusal::new(Event::TooManyStreams, 503, message, Some(1.0));
        (!self.shared.open_stream()).then(refusal)
    }
}

#[tonic::async_trait]
impl<H: Host> ExternalProcessor for Processor<H> {
    type ProcessStream = ReceiverStream<Sent>;

    async fn process(
        &self,
        request: Request<Streaming<Message>>,
    ) -> Result<Response<Self::ProcessStream>, Status> {
        // One reply, so that a proxy that does not read holds no more.
        let (sent, replies) = mpsc::channel(1);
        if let Some(refusal) = self.refusal() {
            self.shared.counters.count(refusal.event);
            let _ = sent.try_send(Ok(replies::refusal(&refusal)));
        } else {
            let stream = Stream {
                exchange: Exchange::new(Arc::clone(&self.shared)),
                open: Open(Arc::clone(&self.shared)),
                host: Arc::clone(&self.host),
                messages: Messages::new(&self.shared, request.extensions()),
                sent,
            };
            task::spawn(stream.run(self.phases.clone()));
        }
        Ok(Response::new(ReceiverStream::new(replies)))
    }
}

/// One stream. Fields are dropped in their order: what was booked is released before the stream counts as closed.
struct Stream<H> {
    exchange: Exchange,
    #[expect(dead_code, reason = "counts as long as it is there")]
    open: Open,
    host: Arc<H>,
    messages: Messages,
    sent: mpsc::Sender<Sent>,
}

/// Whether a stream goes on.
enum Turn {
    Wait,
    End,
}

impl<H: Host> Stream<H> {
    async fn run(mut self, mut phases: watch::Receiver<Phase>) {
        let sent = self.sent.clone();
        let _last_words = LastWords(sent.clone());
        tokio::select! {
            () = self.exchanged() => {}
            () = sent.closed() => {}
            _ = phases.wait_for(|phase| *phase == Phase::Stopped) => {
                let _ = sent.try_send(Err(Status::unavailable("the service stops")));
            }
        }
    }

    async fn exchanged(&mut self) {
        let began = Instant::now();
        let mut deadline = self.exchange.deadline(began, began);
        loop {
            match timeout_at(deadline.into(), self.turn()).await {
                Ok(Turn::Wait) => deadline = self.exchange.deadline(began, Instant::now()),
                Ok(Turn::End) => return,
                Err(_) => break,
            }
        }
        self.exchange.expire();
        let _ = timeout(LAST_WORDS, self.steps()).await;
    }

    /// Takes a message and does all that follows from it.
    async fn turn(&mut self) -> Turn {
        match self.messages.next().await {
            Ok(Some(message)) => {
                self.exchange.receive(message);
                self.steps().await
            }
            Ok(None) => Turn::End,
            Err(status) => {
                self.fail(status).await;
                Turn::End
            }
        }
    }

    async fn steps(&mut self) -> Turn {
        loop {
            match self.exchange.next() {
                Step::Reply(reply) => {
                    if self.sent.send(Ok(*reply)).await.is_err() {
                        return Turn::End;
                    }
                }
                Step::Ask(question) => {
                    let (picked, rewritten) = ask(&self.host, *question).await;
                    self.exchange.answered(picked, rewritten);
                }
                Step::Move(moving) => {
                    let Ok((pick, moved)) = task::spawn_blocking(|| moving.run()).await else {
                        self.fail(Status::internal("the booking cannot be moved"))
                            .await;
                        return Turn::End;
                    };
                    self.exchange.moved(pick, moved);
                }
                Step::Fail(reason) => {
                    self.fail(Status::invalid_argument(reason)).await;
                    return Turn::End;
                }
                Step::Wait => return Turn::Wait,
                Step::End => return Turn::End,
            }
        }
    }

    async fn fail(&mut self, status: Status) {
        let _ = timeout(LAST_WORDS, self.sent.send(Err(status))).await;
    }
}

/// Makes the body, which takes as long as reading it, and gets a pick. The body names the peer to copy from.
async fn ask<H: Host>(
    host: &Arc<H>,
    question: Question,
) -> (Result<Picked, Refusal>, Option<Bytes>) {
    let prepared = if question.is_long() {
        task::spawn_blocking(|| question.prepare()).await
    } else {
        Ok(question.prepare())
    };
    let Ok((asked, rewritten)) = prepared else {
        // The runtime ends.
        return (Err(Refusal::failed()), None);
    };
    let body = rewritten.clone().or_else(|| asked.body.clone());
    let headers = asked.headers.clone();
    let picked = host.pick(asked).await;
    let of = |picked: &Picked| picked.booking.booked.outgoing();
    let outgoing = picked.as_ref().ok().and_then(of);
    match (outgoing, body) {
        (Some(outgoing), Some(body)) => match outgoing.body(&headers, body).await {
            Ok(other) => (picked, Some(other)),
            Err(refusal) => (Err(refusal), None),
        },
        _ => (picked, rewritten),
    }
}

/// A stream that counts as open.
#[derive(Debug)]
struct Open(Arc<Shared>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.close_stream();
    }
}

/// Lets the proxy know of a stream that ends by a panic of the host: an end without an error would mean a request
/// without a pick.
struct LastWords(mpsc::Sender<Sent>);

impl Drop for LastWords {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = self.0.try_send(Err(Status::internal("the pick failed")));
        }
    }
}
