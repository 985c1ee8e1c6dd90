//! Whether the fields of a block describe it completely.
//!
//! Events leave adapters out, and salts in some versions, though both are hashed. So the fields of a block count as
//! complete if its hash follows from them; else it gets an object of its own, which no request has.

use sha2::{Digest, Sha256};
use xxhash_rust::xxh3::xxh3_64;

use super::event::{Block, Hash, Scheme, hex};

/// Whether its fields alone identify `block`, which follows `parent` and precedes `next`.
pub(super) fn is_proven(
    scheme: Scheme,
    parent: Option<&Hash>,
    block: &Block,
    next: Option<&Block>,
) -> bool {
    match scheme {
        Scheme::BlockKey => {
            let before = match parent {
                None => 0,
                Some(Hash::Word(parent)) => *parent,
                Some(Hash::Digest(_)) => return false,
            };
            let salt = block.salt.as_deref().filter(|_| parent.is_none());
            let Some(salt) = salt else {
                return block_key(block, before, None) == Some(block.hash.clone());
            };
            // The first manager mixes in a hash of the salt that only its standard library can compute. Adapters are in
            // every block, so that the next one shows that there is none.
            block_key(block, before, Some(salt_id(salt))) == Some(block.hash.clone())
                || next.is_some_and(|next| is_proven(scheme, Some(&block.hash), next, None))
        }
        // Adapter and salt are in the key before the first block alone.
        Scheme::Sha256 => parent.is_some() || is_root(block),
        Scheme::Unknown => false,
    }
}

/// The objects of a block.
pub(super) fn objects(block: &Block, is_proven: bool, out: &mut Vec<u64>) {
    out.extend(block.objects.iter().map(|object| image(&object.id)));
    if block.objects.is_empty() {
        out.extend(block.digests.iter().map(|(_, digest)| head(digest)));
    }
    if !block.extra_ids.is_empty() {
        let bytes: Vec<u8> = block
            .extra_ids
            .iter()
            .flat_map(|id| id.to_le_bytes())
            .collect();
        out.push(xxh3_64(&bytes));
    }
    if !is_proven {
        out.push(match &block.hash {
            Hash::Word(word) => xxh3_64(&[b"unproven".as_slice(), &word.to_le_bytes()].concat()),
            Hash::Digest(digest) => xxh3_64(digest),
        });
    }
}

/// An id as engines write it, of which the first 16 hex digits are taken; else any text.
fn image(id: &str) -> u64 {
    match hex(id) {
        Some(digest) if digest.len() >= 8 => head(&digest),
        _ => xxh3_64(id.as_bytes()),
    }
}

fn head(digest: &[u8]) -> u64 {
    digest
        .first_chunk()
        .map_or_else(|| xxh3_64(digest), |head| u64::from_be_bytes(*head))
}

/// `BlockKeyHasher::hash` of TensorRT-LLM.
fn block_key(block: &Block, parent: u64, salt: Option<u64>) -> Option<Hash> {
    if !block.digests.is_empty() {
        return None;
    }
    let mut seed = block.tokens.len() as u64 ^ parent.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    if let Some(salt) = salt.filter(|_| parent == 0) {
        seed = mix_long(salt, seed);
    }
    for (at, token) in block.tokens.iter().enumerate() {
        seed = mix(*token, seed);
        if let Some(extra) = block.extra_ids.get(at) {
            seed = mix_long(*extra, seed);
        }
    }
    if let Some(lora) = block.lora {
        seed = mix_long(lora, seed);
    }
    for object in &block.objects {
        let digest = hex(&object.id).filter(|digest| digest.len() == 32)?;
        for word in digest.as_chunks::<4>().0 {
            seed = mix(u32::from_le_bytes(*word), seed);
        }
        seed = mix_long(object.offset, seed);
    }
    Some(Hash::Word(seed))
}

fn mix(value: u32, seed: u64) -> u64 {
    let value = (value >> 16 ^ value).wrapping_mul(0x045d_9f3b);
    let value = (value >> 16 ^ value).wrapping_mul(0x045d_9f3b);
    let value = (value >> 16 ^ value).wrapping_add(0x9e37_79b9);
    seed ^ u64::from(value)
        .wrapping_add(seed << 6)
        .wrapping_add(seed >> 2)
}

fn mix_long(value: u64, seed: u64) -> u64 {
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    let value = (value ^ value >> 31).wrapping_add(0x9e37_79b9);
    seed ^ value.wrapping_add(seed << 6).wrapping_add(seed >> 2)
}

fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// The number that the second manager mixes in for a salt.
fn salt_id(salt: &str) -> u64 {
    let digest = sha256(salt.as_bytes());
    digest
        .first_chunk()
        .map_or(0, |head| u64::from_le_bytes(*head))
}

/// Whether the key of a first block of `v2_sha256` follows from adapter, salt and tokens.
fn is_root(block: &Block) -> bool {
    let salt = block.salt.as_deref().map(salt_id);
    let scope = [block.lora, salt];
    let mask = u8::from(block.lora.is_some()) | u8::from(salt.is_some()) << 1;
    let mut bytes = vec![mask];
    bytes.extend(scope.into_iter().flatten().flat_map(u64::to_le_bytes));
    let mut content = sha256(&bytes).to_vec();
    let mut digests = block.digests.iter().peekable();
    for (at, token) in block.tokens.iter().enumerate() {
        match digests.next_if(|(position, _)| *position == at) {
            Some((_, digest)) => content.extend_from_slice(digest),
            None => content.extend_from_slice(&token.to_le_bytes()),
        }
    }
    let key = sha256(&content);
    match &block.hash {
        Hash::Word(word) => key.first_chunk() == Some(&word.to_be_bytes()),
        Hash::Digest(digest) => **digest == key,
    }
}
