//! Workers that come, change and go at one of three routers.

use crate::fleet::about::{About, Word};
use crate::sharing::messages::Version;

use super::network::{Fates, Network, Site as _};
use super::*;

/// A router and the list of its workers, which is kept outside of a selector.
struct Site {
    selector: Selector,
    /// Weight and readiness; a draining worker is no longer listed.
    workers: BTreeMap<String, (u32, bool)>,
    open: Vec<BookingId>,
}

fn about(weight: u32) -> About {
    About {
        weight: f64::from(weight),
        ..About::default()
    }
}

#[expect(clippy::cast_sign_loss, reason = "weights are positive")]
fn weight(about: &About) -> u32 {
    about.weight as u32
}

impl Site {
    fn new(origin: u64) -> Self {
        let mut site = Self::alone(origin);
        site.selector.sharing_mut().share_fleet();
        site
    }

    /// One that does not share its fleet.
    fn alone(origin: u64) -> Self {
        Self {
            selector: router(origin, 100_000),
            workers: WORKERS.map(|name| (name.into(), (1, true))).into(),
            open: Vec::new(),
        }
    }

    fn add(&mut self, name: &str, weight: u32, now: u64) {
        let new = !self.workers.contains_key(name);
        self.act(name, Word::Here(about(weight)), now);
        let ready = new.then_some(Word::Ready(true));
        let words = [Word::Here(about(weight))].into_iter().chain(ready);
        self.selector.sharing_mut().publish_changes(name, words);
    }

    fn set_ready(&mut self, name: &str, ready: bool, now: u64) {
        if self.workers.contains_key(name) {
            self.act(name, Word::Ready(ready), now);
            let mut sharing = self.selector.sharing_mut();
            sharing.publish_changes(name, [Word::Ready(ready)]);
        }
    }

    fn remove(&mut self, name: &str, word: Word, now: u64) {
        if self.workers.contains_key(name) {
            self.act(name, word.clone(), now);
            self.selector.sharing_mut().publish_changes(name, [word]);
        }
    }

    fn act(&mut self, name: &str, word: Word, now: u64) {
        let known = self.workers.contains_key(name);
        match word {
            Word::Gone => {
                self.selector.workers_mut().remove(name);
                self.workers.remove(name);
            }
            Word::Draining if known => {
                self.selector.workers_mut().drain(name);
                self.workers.remove(name);
            }
            Word::Here(about) => {
                add(&mut self.selector, name, now);
                let mut workers = self.selector.workers_mut();
                workers.set_weight(name, about.weight).unwrap();
                let entry = self.workers.entry(name.into()).or_insert((0, true));
                entry.0 = weight(&about);
            }
            Word::Ready(ready) if known => {
                self.selector.workers_mut().set_ready(name, ready);
                self.workers.get_mut(name).unwrap().1 = ready;
            }
            _ => {}
        }
    }

    fn ask(&mut self, path: &[SequenceHash], now: u64) {
        let ready = self.workers.iter().filter(|(_, (_, ready))| *ready);
        let names: Vec<&str> = ready.map(|(name, _)| name.as_str()).collect();
        if !names.is_empty() {
            let booking = ask_one_of(&names, &mut self.selector, path, now);
            self.open.push(booking);
        }
    }

    /// Load by listed worker.
    fn loads(&self) -> BTreeMap<&str, Load> {
        let names = self.workers.keys().map(String::as_str);
        names
            .map(|name| (name, load(&self.selector, name)))
            .collect()
    }

    /// Its own open requests by listed worker.
    fn own(&self) -> BTreeMap<String, u32> {
        let mut found = BTreeMap::new();
        for booked in self.selector.bookings.book.bookings.open() {
            let Some(name) = self.selector.fleet.name(booked.worker) else {
                continue;
            };
            if !booked.payload.is_remote && self.workers.contains_key(&*name) {
                *found.entry(name.to_string()).or_default() += 1;
            }
        }
        found
    }

    /// The last words, by name and whether they are on readiness.
    fn words(&self) -> BTreeMap<(String, bool), (Version, Word)> {
        let words = self.selector.sharing().unwrap().words.as_ref();
        let all = words.into_iter().flat_map(super::messages::Register::iter);
        all.map(|(name, version, word)| {
            let of_readiness = matches!(word, Word::Ready(_));
            ((name.to_owned(), of_readiness), (version, word.clone()))
        })
        .collect()
    }
}

impl network::Site for Site {
    fn selector(&mut self) -> &mut Selector {
        &mut self.selector
    }

    fn receive(&mut self, message: &[u8], now: u64) -> cachelb_core::Result<Receipt> {
        let heard = hear(&mut self.selector, message, now);
        for (name, _) in self.selector.sharing().unwrap().changes_due() {
            let due = self.selector.sharing_mut().take_change(&name).unwrap();
            let ready = due.ready.map(Word::Ready);
            for word in due.standing.into_iter().chain(ready) {
                self.act(&name, word, now);
            }
        }
        heard
    }
}

fn pass(from: &mut Site, to: &mut Site, now: u64) {
    for message in tell(&mut from.selector) {
        to.receive(&message, now).unwrap();
        to.selector.validate().unwrap();
    }
}

#[test]
fn a_new_worker_is_there_before_what_is_booked_on_it() {
    let (mut a, mut b) = (Site::new(1), Site::new(2));
    a.ask(&prompt(1, 3, 1, 4), 1);
    a.add("new", 3, 2);
    for name in WORKERS {
        a.remove(name, Word::Gone, 3);
    }
    a.ask(&prompt(1, 3, 2, 4), 4);
    pass(&mut a, &mut b, 5);
    assert_eq!(b.workers, BTreeMap::from([("new".into(), (3, true))]));
    assert_eq!((a.loads(), counts(&b.selector).strangers), (b.loads(), 0));
    assert_eq!(counts(&b.selector).changes, 6);
    assert_eq!(tell(&mut b.selector).len(), 1, "nothing is published again");
    // Changes come before the entries of a snapshot as well.
    let mut c = Site::new(3);
    for part in snapshot(&mut a.selector, Millis(6)) {
        c.receive(&part, 6).unwrap();
    }
    assert_eq!((&c.workers, c.loads()), (&a.workers, a.loads()));
    assert_eq!(counts(&c.selector).strangers, 0);
}

#[test]
fn who_does_not_share_the_fleet_keeps_its_own() {
    let (mut a, mut b) = (Site::new(1), router(2, 1000));
    a.add("new", 3, 2);
    a.remove("a", Word::Gone, 3);
    super::pass(&mut a.selector, &mut b, 4);
    assert!(b.fleet().find("new").is_none() && b.fleet().find("a").is_some());
    assert_eq!(b.sharing().unwrap().changes_due(), []);
    assert_eq!(counts(&b).changes, 0);
    b.sharing_mut().publish_changes("a", [Word::Gone]);
    assert_eq!(b.sharing().unwrap().snapshot_changes(), [] as [Vec<u8>; 0]);
}

#[test]
fn what_one_said_outlives_it() {
    let (mut a, mut b, mut c) = (Site::new(1), Site::new(2), Site::new(3));
    pass(&mut b, &mut c, 1);
    a.set_ready("a", false, 2);
    pass(&mut a, &mut b, 3);
    pass(&mut b, &mut c, 4);
    assert_eq!(c.workers["a"], (1, true), "only the origin publishes it");
    b.selector.sharing_mut().forget_origin(1, Millis(5));
    pass(&mut b, &mut c, 6);
    assert_eq!(c.workers["a"], (1, false));
}

#[derive(Debug, Clone)]
enum Step {
    Ask(u64, u64, usize),
    First(prop::sample::Index),
    Answer(prop::sample::Index, u64, usize),
    Close(prop::sample::Index, bool),
    Add(usize, u32),
    Ready(usize, bool),
    Remove(usize, bool),
    Reset(usize),
    Tell,
    Restart,
}

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

fn steps() -> impl Strategy<Value = Step> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        5 => (0..4_u64, 0..40_u64, 1..12_usize).prop_map(|(f, o, n)| Step::Ask(f, o, n)),
        2 => index().prop_map(Step::First),
        2 => (index(), 0..4_u64, 4..12_usize).prop_map(|(i, f, n)| Step::Answer(i, f, n)),
        3 => (index(), any::<bool>()).prop_map(|(i, f)| Step::Close(i, f)),
        3 => (0..6_usize, 1..4_u32).prop_map(|(n, w)| Step::Add(n, w)),
        2 => (0..6_usize, any::<bool>()).prop_map(|(n, r)| Step::Ready(n, r)),
        2 => (0..6_usize, any::<bool>()).prop_map(|(n, d)| Step::Remove(n, d)),
        1 => (0..4_usize).prop_map(Step::Reset),
        6 => Just(Step::Tell),
        1 => Just(Step::Restart),
    ]
}

/// Outcome of a random case.
type Outcome = std::result::Result<(), TestCaseError>;

/// Messages are lost, come twice or late, routers restart with the workers of the beginning; then all is delivered.
/// All have the same workers, by the latest change of each, and the same load, which is that of their open requests.
fn run(plan: &[(usize, Step, Fates)], new: fn(u64) -> Site) -> Outcome {
    let shares = new(9).selector.sharing().unwrap().words.is_some();
    let mut network = Network::new(new);
    for (now, (at, step, fates)) in (0..).zip(plan) {
        let (at, fates) = (*at, *fates);
        let site = &mut network.sites[at];
        match step.clone() {
            Step::Ask(family, own, length) => site.ask(&prompt(family, 3, own, length), now),
            Step::First(which) if !site.open.is_empty() => {
                site.selector
                    .first_token(*which.get(&site.open), Millis(now));
            }
            Step::Answer(which, family, length) if !site.open.is_empty() => {
                let path = prompt(family, 3, 50, length);
                let computed = Request {
                    blocks: Some((&path, Origin::Tokens)),
                    now: Millis(now),
                    ..Request::default()
                };
                let recorded = site.selector.answered(*which.get(&site.open), &computed);
                prop_assert_eq!(recorded, Ok(()));
            }
            Step::Close(which, failed) if !site.open.is_empty() => {
                let booking = site.open.swap_remove(which.index(site.open.len()));
                let ending = if failed {
                    Ending::Failed
                } else {
                    Ending::Completed
                };
                site.selector
                    .end(booking, ending, Usage::default(), Millis(now));
            }
            Step::Add(name, weight) if shares => site.add(NAMES[name], weight, now),
            Step::Ready(name, ready) if shares => site.set_ready(NAMES[name], ready, now),
            Step::Remove(name, drain) if shares => {
                let word = if drain { Word::Draining } else { Word::Gone };
                site.remove(NAMES[name], word, now);
            }
            Step::Reset(name) => {
                let mut workers = site.selector.workers_mut();
                workers.reset_cache(WORKERS[name], Millis(now));
            }
            Step::Restart => network.restart(at, now),
            Step::Tell => network.tell(at, fates, now),
            _ => {}
        }
        network.pass(fates, now);
    }
    network.heal();
    let sites = &network.sites;
    let words = sites[0].words();
    let mut inflight = BTreeMap::new();
    for site in sites {
        site.selector.validate().unwrap();
        prop_assert_eq!(&site.words(), &words);
        prop_assert_eq!(&site.workers, &sites[0].workers);
        prop_assert_eq!(site.loads(), sites[0].loads());
        for (name, open) in site.own() {
            *inflight.entry(name).or_insert(0) += open;
        }
    }
    for (name, load) in sites[0].loads() {
        prop_assert_eq!(load.0, inflight.get(name).copied().unwrap_or(0), "{}", name);
    }
    for ((name, _), (_, word)) in &words {
        let listed = sites[0].workers.get(name);
        let as_said = match word {
            Word::Gone | Word::Draining => listed.is_none(),
            Word::Here(about) => listed.is_some_and(|l| l.0 == weight(about)),
            Word::Ready(ready) => listed.is_none_or(|l| l.1 == *ready),
        };
        prop_assert!(as_said, "{name}: {word:?}, {listed:?}");
    }
    // All requests end, and nothing is left of them anywhere.
    for site in &mut network.sites {
        for (i, booking) in std::mem::take(&mut site.open).into_iter().enumerate() {
            let ending = [Ending::Failed, Ending::Completed][i % 2];
            site.selector.tokens(booking, 40, Millis(1_000));
            site.selector
                .end(booking, ending, Usage::default(), Millis(1_000));
        }
    }
    (0..3).for_each(|from| network.deliver(from));
    for site in &network.sites {
        site.selector.validate().unwrap();
        prop_assert!(site.loads().values().all(|load| *load == (0, 0, 0, 0)));
        let mut loads = site.selector.book().loads.columns().iter();
        prop_assert!(loads.all(|load| load.output_blocks == 0));
    }
    Ok(())
}

proptest! {
    #[test]
    fn all_have_the_same_fleet_and_load_once_the_network_heals(
        plan in proptest::collection::vec((0..3_usize, steps(), any::<Fates>()), 1..150),
    ) {
        run(&plan, Site::new)?;
        run(&plan, Site::alone)?;
    }
}
