use super::*;

/// Picks the first worker of a list that a query admits, and logs what it was asked.
#[derive(Default)]
struct First {
    workers: Vec<&'static str>,
    /// The model that the workers serve.
    serves: &'static str,
    rank: Option<u32>,
    source: Option<&'static str>,
    inflight: u64,
    booked: Vec<Arc<str>>,
}

impl First {
    fn select(&mut self, model: Option<&str>, query: Query<'_>) -> Selected<Chosen<bool>> {
        let model = model.unwrap_or_default();
        if model != self.serves {
            return Err(Refusal::no_model());
        }
        let admits = |key: &&&str| {
            let is_among = query.among.is_none_or(|among| among.contains(**key));
            is_among && !query.exclude.iter().any(|one| **one == ***key)
        };
        let key = self.workers.iter().find(admits);
        let key: Arc<str> = (*key.ok_or_else(|| Refusal::no_worker(None))?).into();
        if !query.dry_run {
            self.booked.push(Arc::clone(&key));
        }
        Ok(Some(Chosen {
            key,
            rank: self.rank,
            model: model.to_owned(),
            inflight: self.inflight,
            outgoing: self.source.map(|key| Outgoing {
                key: Some(key.into()),
                ..Outgoing::default()
            }),
            load: !query.dry_run,
        }))
    }
}

fn known(addresses: &[(&str, Option<&str>)]) -> Known {
    let pair = |(key, address): &(&str, Option<&str>)| ((*key).into(), address.map(Arc::from));
    Known::new(1, addresses.iter().map(pair).collect())
}

fn three() -> (First, Known) {
    let first = First {
        workers: vec!["a", "b", "c"],
        ..First::default()
    };
    let addresses = [
        ("a", Some("1.0.0.1:80")),
        ("b", None),
        ("c", Some("1.0.0.3:80")),
    ];
    (first, known(&addresses))
}

fn endpoints(first: &mut First, known: &Known, asked: &Asked) -> Result<Vec<String>, Refusal> {
    let models = ["other", first.serves];
    let mut select = |model: Option<&str>, query: Query<'_>| first.select(model, query);
    let picked = pick(asked, known, &models, &mut select)?;
    let (endpoints, chosen) = picked.expect("nothing waits");
    assert!(chosen.load, "the first endpoint is booked");
    Ok(endpoints)
}

#[test]
fn a_worker_without_an_address_is_passed_over() {
    let (mut first, known) = three();
    let asked = Asked {
        fallbacks: 2,
        ..Asked::default()
    };
    let found = endpoints(&mut first, &known, &asked).unwrap();
    assert_eq!(found, ["1.0.0.1:80", "1.0.0.3:80"]);
    assert_eq!(first.booked, [Arc::from("a")]);
}

#[test]
fn a_worker_with_ranks_has_no_fallback() {
    let (mut first, known) = three();
    first.rank = Some(1);
    let asked = Asked {
        fallbacks: 2,
        ..Asked::default()
    };
    assert_eq!(
        endpoints(&mut first, &known, &asked).unwrap(),
        ["1.0.0.1:80"]
    );
}

#[test]
fn a_source_of_the_picked_worker_is_no_fallback() {
    let (mut first, known) = three();
    first.source = Some("c");
    let asked = Asked {
        fallbacks: 2,
        ..Asked::default()
    };
    assert_eq!(
        endpoints(&mut first, &known, &asked).unwrap(),
        ["1.0.0.1:80"]
    );
}

#[test]
fn a_worker_that_was_tried_is_excluded() {
    let (mut first, known) = three();
    let asked = Asked {
        exclude: vec!["a".into()],
        fallbacks: 3,
        ..Asked::default()
    };
    assert_eq!(
        endpoints(&mut first, &known, &asked).unwrap(),
        ["1.0.0.3:80"]
    );
}

#[test]
fn a_busy_worker_sheds_a_request_and_books_nothing() {
    let (mut first, known) = three();
    first.inflight = 4;
    let mut asked = Asked {
        shed_inflight: Some(4),
        ..Asked::default()
    };
    let refused = endpoints(&mut first, &known, &asked).unwrap_err();
    assert_eq!((refused.event, first.booked.len()), (Event::Shed, 0));
    asked.shed_inflight = Some(5);
    assert!(endpoints(&mut first, &known, &asked).is_ok());
}

#[test]
fn a_request_for_any_model_goes_to_a_model_with_workers() {
    let (mut first, known) = three();
    first.serves = "served";
    let mut asked = Asked::default();
    let refused = endpoints(&mut first, &known, &asked).unwrap_err();
    assert_eq!(refused.event, Event::NoModel);
    asked.any_model = true;
    assert_eq!(
        endpoints(&mut first, &known, &asked).unwrap(),
        ["1.0.0.1:80"]
    );
    first.workers.clear();
    let refused = endpoints(&mut first, &known, &asked).unwrap_err();
    assert_eq!(refused.event, Event::NoWorker);
}
