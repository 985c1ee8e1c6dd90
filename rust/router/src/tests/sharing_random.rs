//! Routers over a network that loses, repeats and mixes up.

use super::*;

#[derive(Debug, Clone)]
enum Step {
    Ask(u64, u64, usize),
    First(prop::sample::Index),
    Close(prop::sample::Index, bool),
    Reset(usize),
    Tell,
    Restart,
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..4_u64, 0..40_u64, 1..12_usize).prop_map(|(f, o, n)| Step::Ask(f, o, n)),
        3 => any::<prop::sample::Index>().prop_map(Step::First),
        3 => (any::<prop::sample::Index>(), any::<bool>()).prop_map(|(i, f)| Step::Close(i, f)),
        1 => (0..4_usize).prop_map(Step::Reset),
        5 => Just(Step::Tell),
        1 => Just(Step::Restart),
    ]
}

proptest! {
    /// Every message may be lost, come twice or late; then all is delivered, and everybody believes the same of the load
    /// and at least what all placed since the worker's last loss.
    #[test]
    fn all_agree_once_the_network_heals(
        plan in proptest::collection::vec((0..3_usize, steps(), any::<[u8; 2]>()), 1..150),
    ) {
        let mut routers: Vec<Selector> = (1..=3).map(|origin| router(origin, 100_000)).collect();
        let mut open: Vec<Vec<BookingId>> = vec![Vec::new(); 3];
        let mut late: Vec<(usize, usize, Vec<u8>)> = Vec::new();
        let mut born = 10;
        for (now, (at, step, fates)) in plan.into_iter().enumerate() {
            let now = now as u64;
            match step {
                Step::Ask(family, own, length) => {
                    let path = prompt(family, 3, own, length);
                    let booking = ask(&mut routers[at], &path, now);
                    open[at].push(booking);
                }
                Step::First(which) if !open[at].is_empty() => {
                    let booking = open[at][which.index(open[at].len())];
                    routers[at].first_token(booking, Millis(now));
                }
                Step::Close(which, failed) if !open[at].is_empty() => {
                    let which = which.index(open[at].len());
                    let booking = open[at].swap_remove(which);
                    let ending = if failed { Ending::Failed } else { Ending::Completed };
                    routers[at].close(booking, ending, Usage::default(), Millis(now));
                }
                Step::Reset(worker) => {
                    routers[at].workers_mut().reset_cache(WORKERS[worker], Millis(now));
                }
                Step::Restart => {
                    // The others notice its silence.
                    routers[at] = router(born, 100_000);
                    open[at].clear();
                    late.retain(|(from, ..)| *from != at);
                    let gone: Vec<u64> = if born == 10 { vec![1, 2, 3] } else { (1..born).collect() };
                    let alive: Vec<u64> = routers.iter().map(|r| r.sharing.as_ref().unwrap().origin).collect();
                    for other in &mut routers {
                        for origin in gone.iter().filter(|o| !alive.contains(o)) {
                            other.sharing_mut().forget_origin(*origin, Millis(now));
                        }
                    }
                    born += 1;
                }
                Step::Tell => {
                    let messages = tell(&mut routers[at]);
                    for to in (0..3).filter(|&to| to != at) {
                        for (i, message) in messages.iter().enumerate() {
                            match fates[(i + to) % 2] % 5 {
                                0 => {}
                                1 => late.push((at, to, message.clone())),
                                twice => {
                                    for _ in 0..=u8::from(twice == 2) {
                                        let _ = routers[to].sharing_mut().receive(message, Millis(now));
                                    }
                                }
                            }
                        }
                    }
                }
                _ => {}
            }
            if fates[0] % 7 == 0 && !late.is_empty() {
                let (_, to, message) = late.swap_remove(usize::from(fates[1]) % late.len());
                let _ = routers[to].sharing_mut().receive(&message, Millis(now));
            }
        }
        // Healing: what is late comes, then everybody says how far it has told. Losses may be told in turn.
        for (_, to, message) in late {
            let _ = routers[to].sharing_mut().receive(&message, Millis(1_000));
        }
        for _ in 0..3 {
            for from in 0..3 {
                let mut messages = tell(&mut routers[from]);
                messages.extend(routers[from].sharing().unwrap().heartbeat(7));
                for to in (0..3).filter(|&to| to != from) {
                    let [from, to] = routers.get_disjoint_mut([from, to]).unwrap();
                    for message in &messages {
                        deliver(from, to, message, 1_000);
                    }
                }
            }
        }
        let truth = loads(&routers[0]);
        let total: usize = open.iter().map(Vec::len).sum();
        prop_assert_eq!(truth.values().map(|load| load.0 as usize).sum::<usize>(), total);
        for other in &routers[1..] {
            prop_assert_eq!(&truth, &loads(other));
        }
        for (router, open) in routers.iter_mut().zip(open) {
            router.validate().unwrap();
            for (booking, ending) in open.into_iter().zip([Ending::Failed, Ending::Completed].into_iter().cycle()) {
                router.tokens(booking, 40, Millis(1_000));
                router.close(booking, ending, Usage::default(), Millis(1_000));
            }
        }
        for from in 0..3 {
            let messages = tell(&mut routers[from]);
            for to in (0..3).filter(|&to| to != from) {
                let [from, to] = routers.get_disjoint_mut([from, to]).unwrap();
                for message in &messages {
                    deliver(from, to, message, 1_000);
                }
            }
        }
        for router in &routers {
            router.validate().unwrap();
            prop_assert!(loads(router).values().all(|load| *load == (0, 0, 0, 0)));
            prop_assert!(router.book().loads().columns().iter().all(|load| load.output_blocks == 0));
        }
    }
}
