//! Two faults of the SPIR-V that naga 30 writes, mended: drivers may follow Vulkan's memory model where naga does not. Reports of both, with
//! small shaders, are in tests/shaders/naga.

use std::collections::BTreeMap;

const HEADER: usize = 5;
const MEMORY_MODEL: u32 = 14;
const CAPABILITY: u32 = 17;
const CONSTANT: u32 = 43;
const CONTROL_BARRIER: u32 = 224;

const VULKAN_MEMORY_MODEL: u32 = 3;
const DEVICE_SCOPE: u32 = 5346;
const SUBGROUP: u32 = 3;
const SUBGROUP_MEMORY: u32 = 0x80;
const WORKGROUP_MEMORY: u32 = 0x100;

/// `words` in which `subgroupBarrier()` orders workgroup memory, which naga's orders not, and modules of Vulkan's memory model declare the
/// device scope that `storageBarrier()` and atomics have. Words that are no SPIR-V stay as they are.
pub fn mended(words: &[u32]) -> Vec<u32> {
    let Some(instructions) = split(words) else { return words.to_vec() };
    let constants: BTreeMap<u32, u32> = instructions.iter().filter_map(|i| constant(i)).collect();
    let is_weak = |instruction: &&[u32]| match **instruction {
        [first, scope, _, order] if first & 0xffff == CONTROL_BARRIER => {
            let order = constants.get(&order).copied().unwrap_or_default();
            constants.get(&scope) == Some(&SUBGROUP)
                && order & (SUBGROUP_MEMORY | WORKGROUP_MEMORY) == SUBGROUP_MEMORY
        }
        _ => false,
    };
    // The order of each weak barrier, and a new constant for it.
    let mut stronger = BTreeMap::new();
    let mut bound = words[3];
    for barrier in instructions.iter().filter(|i| is_weak(i)) {
        stronger.entry(barrier[3]).or_insert_with(|| {
            bound += 1;
            bound - 1
        });
    }
    let is_vulkan =
        |i: &&[u32]| matches!(**i, [first, _, VULKAN_MEMORY_MODEL] if first & 0xffff == MEMORY_MODEL);
    let declares = |i: &&[u32]| matches!(**i, [first, DEVICE_SCOPE] if first & 0xffff == CAPABILITY);
    let mut mended = words[..HEADER].to_vec();
    mended[3] = bound;
    if instructions.iter().any(is_vulkan) && !instructions.iter().any(declares) {
        mended.extend([2 << 16 | CAPABILITY, DEVICE_SCOPE]);
    }
    for instruction in &instructions {
        let at = mended.len();
        mended.extend_from_slice(instruction);
        if is_weak(instruction) {
            mended[at + 3] = stronger[&instruction[3]];
        }
        if let Some((id, order)) = constant(instruction)
            && let Some(new) = stronger.get(&id)
        {
            mended.extend([instruction[0], instruction[1], *new, order | WORKGROUP_MEMORY]);
        }
    }
    mended
}

/// The instructions behind the header.
fn split(words: &[u32]) -> Option<Vec<&[u32]>> {
    let mut rest = words.get(HEADER..)?;
    let mut instructions = Vec::new();
    while let Some(first) = rest.first() {
        let (instruction, after) = rest.split_at_checked((first >> 16) as usize)?;
        instructions.push(instruction);
        // An instruction without words would never end.
        rest = (!instruction.is_empty()).then_some(after)?;
    }
    Some(instructions)
}

/// The id and the value of a constant of one word.
fn constant(instruction: &[u32]) -> Option<(u32, u32)> {
    match *instruction {
        [first, _, id, value] if first & 0xffff == CONSTANT => Some((id, value)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn op(words: u32, code: u32) -> u32 {
        words << 16 | code
    }

    #[test]
    fn barriers_of_subgroups_order_workgroup_memory() {
        // %1 is the type; %2 the scope Subgroup, %3 Workgroup, %4 the order, which is a plain number elsewhere.
        let module = |head: &[u32], bound: u32, more: &[u32], order: u32| {
            let mut words = vec![0x0723_0203, 0x1_0600, 0, bound, 0];
            words.extend_from_slice(head);
            words.extend([op(3, MEMORY_MODEL), 0, VULKAN_MEMORY_MODEL]);
            words.extend([op(4, CONSTANT), 1, 2, SUBGROUP, op(4, CONSTANT), 1, 3, 2]);
            words.extend([op(4, CONSTANT), 1, 4, 8 | SUBGROUP_MEMORY]);
            words.extend_from_slice(more);
            words.extend([op(4, CONTROL_BARRIER), 2, 2, order, op(4, CONTROL_BARRIER), 3, 3, 4]);
            words
        };
        let scope = [op(2, CAPABILITY), DEVICE_SCOPE];
        let added = [op(4, CONSTANT), 1, 5, 8 | SUBGROUP_MEMORY | WORKGROUP_MEMORY];
        let expected = module(&scope, 6, &added, 5);
        assert_eq!(mended(&module(&[], 5, &[], 4)), expected);
        assert_eq!(mended(&expected), expected, "nothing is left to mend");
    }

    #[test]
    fn other_words_stay() {
        for words in
            [&[][..], &[1, 2, 3], &[0x0723_0203, 0, 0, 9, 0, 0], &[0x0723_0203, 0, 0, 9, 0, op(7, 43), 1]]
        {
            assert_eq!(mended(words), words);
        }
    }
}
