//! A policy with its options, from values that a binding reads.

use std::sync::Arc;

use crate::named;
use crate::rule::options::{Configured, Declared, Options as _, Policy, Shared, Value};

impl Policy {
    /// The policy with the values that `given` reads, `None` standing for the default; only options that the policy takes
    /// are asked for. `None` if a value is of another kind than its option declares.
    ///
    /// # Errors
    /// Those of `given`.
    pub fn configured<E>(
        &'static self,
        mut given: impl FnMut(&Declared) -> Result<Option<Value>, E>,
    ) -> Result<Option<Configured>, E> {
        let mut own = Vec::new();
        for option in (self.declared)() {
            let Some(value) = given(&option)?.or_else(|| made(option.default)) else {
                return Ok(None);
            };
            own.push(value);
        }
        let taken = self.shared();
        let mut shared = Vec::new();
        for (at, option) in Shared::declared().into_iter().enumerate() {
            let (value, default) = match taken.get(at) {
                Some(taken) => (given(taken)?, taken.default.clone()),
                None => (None, option.default),
            };
            shared.push(value.unwrap_or(default));
        }
        let configured = |options| {
            Some(Configured {
                policy: self,
                options,
                shared: Shared::from_values(shared)?,
                by_name: false,
            })
        };
        Ok((self.read)(own).and_then(configured))
    }

    /// The policy with its defaults, as one that is given by its name.
    #[must_use]
    pub fn by_name(&'static self) -> Option<Configured> {
        let Ok(configured) = self.configured(|_| Ok::<_, std::convert::Infallible>(None));
        Some(Configured {
            by_name: true,
            ..configured?
        })
    }
}

/// A default, with the policy that a name stands for.
fn made(value: Value) -> Option<Value> {
    let Value::PolicyName(name) = value else {
        return Some(value);
    };
    Some(Value::Policy(Arc::new(named(name)?.by_name()?)))
}
