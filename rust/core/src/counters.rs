//! Counts that are listed by the names of their fields.

/// Declares a struct whose first fields are counts that `named` lists by their names, each written once.
#[macro_export]
macro_rules! counted {
    (
        $(#[$about:meta])* pub struct $name:ident {
            $($(#[$doc:meta])* pub $field:ident: u64,)*
        }
        $(beside { $($(#[$other_doc:meta])* $vis:vis $other:ident: $kind:ty,)* })?
    ) => {
        $(#[$about])*
        pub struct $name {
            $($(#[$doc])* pub $field: u64,)*
            $($($(#[$other_doc])* $vis $other: $kind,)*)?
        }

        impl $name {
            /// The counts by name.
            #[must_use]
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($field), self.$field)),*]
            }

            /// Adds the counts of another.
            pub fn merge(&mut self, other: &Self) {
                $(self.$field += other.$field;)*
            }
        }
    };
}
