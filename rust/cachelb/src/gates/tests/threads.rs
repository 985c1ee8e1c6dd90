//! Threads that wait for each other's releases, which are announced only while a request waits, as the bindings do it:
//! many requests in a few of their schedules, and a few in all of them.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Barrier};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use super::*;

const THREADS: u64 = 4;
const REQUESTS: u64 = 100_000;
/// A call is lost if a thread sleeps so long while no request of any other ends.
const LOST: Duration = Duration::from_secs(20);

/// A thread that waits for a call.
trait Sleeper: Wake + Send + Sync + 'static {
    fn wait(&self);
}

/// State shared by threads, with the locks and counters of `$sync`.
macro_rules! shared {
    ($($sync:ident)::+) => {
        use $($sync)::+::Mutex;
        use $($sync)::+::atomic::{AtomicUsize, Ordering};

        struct Shared {
            door: Mutex<Door>,
            /// Requests that wait, as of the latest call: a release looks no further while there is none.
            waiting: AtomicUsize,
        }

        impl Shared {
            fn call_next(&self, is_event: bool) {
                let mut door = self.door.lock().expect("sound");
                let called = door.selector.call_next(is_event, Millis(0));
                let waiting = door.selector.gates.waiting();
                self.waiting.store(waiting, Ordering::SeqCst);
                drop(door);
                called.wake();
            }

            /// One request from its arrival to its end. Returns whether it waited.
            fn serve(&self, asked: &Asked, parked: &Arc<impl Sleeper>) -> bool {
                let newcomer = Newcomer {
                    waker: Waker::from(Arc::clone(parked)),
                    caller: asked.caller,
                    until: None,
                    for_workers: false,
                };
                let mut way = Way::Hold(newcomer);
                let pick = loop {
                    let mut door = self.door.lock().expect("sound");
                    let passed = door.pass(asked, &way, Selector::select);
                    drop(door);
                    match passed {
                        Ok(Ok(pick)) => break pick,
                        Ok(Err(Waits { ticket, .. })) => {
                            way = Way::Again(ticket, false);
                            self.call_next(false);
                            parked.wait();
                        }
                        Err(error) => panic!("{error}"),
                    }
                };
                let waited = way.ticket().is_some();
                if waited {
                    self.call_next(false);
                }
                let booking = pick.booking.expect("booked");
                let mut door = self.door.lock().expect("sound");
                let (ending, usage) = (Ending::Completed, Usage::default());
                assert!(door.selector.end(booking, ending, usage, Millis(0)));
                drop(door);
                if self.waiting.load(Ordering::SeqCst) > 0 {
                    self.call_next(true);
                }
                waited
            }
        }
    };
}

mod on_threads {
    use super::*;

    shared!(std::sync);

    struct Parked {
        thread: Thread,
        is_called: AtomicBool,
        ended: Arc<AtomicUsize>,
    }

    impl Wake for Parked {
        fn wake(self: Arc<Self>) {
            self.is_called
                .store(true, std::sync::atomic::Ordering::Release);
            self.thread.unpark();
        }
    }

    impl Sleeper for Parked {
        fn wait(&self) {
            while !self
                .is_called
                .swap(false, std::sync::atomic::Ordering::Acquire)
            {
                let (begun, ended) = (Instant::now(), self.ended.load(Ordering::Relaxed));
                thread::park_timeout(LOST);
                let is_lost =
                    begun.elapsed() >= LOST && self.ended.load(Ordering::Relaxed) == ended;
                assert!(!is_lost, "the call was lost");
            }
        }
    }

    #[test]
    fn no_thread_waits_for_a_call_that_does_not_come() {
        for callers in [1, 2] {
            let door = Mutex::new(Door::least_loaded(2, &gate(Some(1), None)));
            let waiting = AtomicUsize::new(0);
            let shared = Shared { door, waiting };
            let (waited, ended) = (AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
            let start = Barrier::new(usize::try_from(THREADS).expect("few"));
            thread::scope(|scope| {
                for number in 0..THREADS {
                    let (shared, waited, ended, start) = (&shared, &waited, &ended, &start);
                    scope.spawn(move || {
                        let thread = thread::current();
                        let is_called = AtomicBool::new(false);
                        let ended = Arc::clone(ended);
                        let parked = Arc::new(Parked {
                            thread,
                            is_called,
                            ended,
                        });
                        start.wait();
                        for n in 0..REQUESTS / THREADS {
                            let asked = Asked {
                                priority: (n % 3).cast_signed(),
                                caller: number % callers,
                                barred: [n % 7 == 0, n % 7 == 1, false],
                                ..of(1 + n % 50)
                            };
                            let has_waited = shared.serve(&asked, &parked);
                            waited.fetch_add(usize::from(has_waited), Ordering::Relaxed);
                            parked.ended.fetch_add(1, Ordering::Relaxed);
                        }
                    });
                }
            });
            let door = shared.door.into_inner().expect("sound");
            assert_eq!(door.gate().waiting(), (0, 0));
            assert!(door.selector.book().bookings.is_empty());
            assert!(waited.into_inner() > 0, "no request had to wait");
            door.selector.validate().expect("counts agree");
        }
    }
}

mod in_all_schedules {
    use super::*;

    shared!(loom::sync);

    struct Notified(loom::sync::Notify);

    impl Wake for Notified {
        fn wake(self: Arc<Self>) {
            self.0.notify();
        }
    }

    impl Sleeper for Notified {
        fn wait(&self) {
            self.0.wait();
        }
    }

    /// Where one waited for a call that does not come, no thread could go on.
    #[test]
    fn nobody_waits_for_a_call_that_does_not_come() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let door = Mutex::new(Door::least_loaded(1, &gate(Some(1), None)));
            let waiting = AtomicUsize::new(0);
            let shared = Arc::new(Shared { door, waiting });
            let serve = |shared: &Shared, caller| {
                let asked = Asked { caller, ..of(1) };
                shared.serve(&asked, &Arc::new(Notified(loom::sync::Notify::new())));
            };
            let threads = [0, 1].map(|caller| {
                let shared = Arc::clone(&shared);
                loom::thread::spawn(move || serve(&shared, caller))
            });
            serve(&shared, 0);
            for thread in threads {
                thread.join().expect("ends");
            }
            let door = shared.door.lock().expect("sound");
            assert_eq!(door.gate().waiting(), (0, 0));
            assert!(door.selector.book().bookings.is_empty());
        });
    }
}
