//! Enums whose variants have names in the API.

/// Declares an enum with `ALL`, every variant in order, and `name`, the text beside each.
#[macro_export]
macro_rules! named {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$meta])*
        pub enum $name {
            $($(#[$doc])* $variant,)*
        }

        impl $name {
            /// Every variant, in order.
            pub const ALL: [Self; [$($text),*].len()] = [$(Self::$variant),*];

            /// Name used in the API.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }

            /// The variant of that name.
            #[must_use]
            pub fn named(name: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|each| each.name() == name)
            }
        }
    };
}
