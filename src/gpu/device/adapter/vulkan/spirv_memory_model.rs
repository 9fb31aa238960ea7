//! The Vulkan memory model of kernels with cooperative matrices.
//!
//! A SPIR-V module with cooperative matrices must declare this model. naga 30 declares it, but leaves
//! every access to memory private to its invocation, and its barriers order accesses without making
//! them available or visible. By the specification, each exchange through workgroup memory is then a
//! data race (gfx-rs/wgpu issue 8805). Its barriers of a subgroup name only SubgroupMemory, which Vulkan
//! ignores. With a version of naga that marks accesses and barriers by itself, nothing here is needed.

use std::collections::{BTreeMap, BTreeSet};

use spirv::{MemoryAccess, MemoryModel, MemorySemantics, Op, StorageClass};

/// The words before the first instruction, and the one that is larger than all ids.
const HEADER: usize = 5;
const BOUND: usize = 3;

const NON_PRIVATE: u32 = MemoryAccess::NON_PRIVATE_POINTER.bits();
const EXCHANGE: u32 = MemorySemantics::MAKE_AVAILABLE.union(MemorySemantics::MAKE_VISIBLE).bits();
/// Barriers without these order no memory, and must not make any available.
const ORDERING: u32 = MemorySemantics::ACQUIRE_RELEASE.bits();
const MEMORY: u32 = MemorySemantics::WORKGROUP_MEMORY
    .union(MemorySemantics::UNIFORM_MEMORY)
    .union(MemorySemantics::SUBGROUP_MEMORY)
    .bits();

/// Returns the words of a SPIR-V module in which each access to workgroup and storage memory is
/// NonPrivate, and each barrier on such memory, or of a subgroup, makes writes available and visible.
/// Returns a module unchanged if it has another memory model or an unknown instruction.
pub fn with_memory_model(module: &[u32]) -> Vec<u32> {
    let declares = |(op, operands): (Op, &[u32])| {
        op == Op::MemoryModel && operands.get(1) == Some(&(MemoryModel::Vulkan as u32))
    };
    let known: usize = instructions(module).map(|(_, operands)| 1 + operands.len()).sum();
    let Some(header) = module.get(..HEADER).filter(|_| HEADER + known == module.len()) else {
        return module.to_vec();
    };
    if !instructions(module).any(declares) {
        return module.to_vec();
    }
    let semantics = instructions(module).filter_map(|(op, operands)| match op {
        Op::ControlBarrier | Op::MemoryBarrier => operands.last().copied(),
        _ => None,
    });
    let mut marker = Marker {
        words: header.to_vec(),
        semantics: semantics.collect(),
        exchanging: BTreeMap::new(),
        shared: BTreeSet::new(),
    };
    for (op, operands) in instructions(module) {
        marker.write(op, operands);
    }
    marker.words
}

/// Returns the instructions of a module, each with its operands, up to the first that is unknown.
pub fn instructions(module: &[u32]) -> impl Iterator<Item = (Op, &[u32])> {
    let mut rest = module.get(HEADER..).unwrap_or_default();
    std::iter::from_fn(move || {
        let (&first, operands) = rest.split_first()?;
        let (operands, after) = operands.split_at_checked((first >> 16).checked_sub(1)? as usize)?;
        rest = after;
        Some((Op::from_u32(first & 0xffff)?, operands))
    })
}

struct Marker {
    words: Vec<u32>,
    /// The constants that are the semantics of barriers, and the new constants in their place.
    semantics: BTreeSet<u32>,
    exchanging: BTreeMap<u32, u32>,
    /// The types of pointers to memory that several invocations access, and the pointers.
    shared: BTreeSet<u32>,
}

impl Marker {
    fn write(&mut self, op: Op, operands: &[u32]) {
        match (op, operands) {
            (Op::TypePointer, &[id, class, _]) if is_shared(class) => {
                self.shared.insert(id);
            }
            // naga makes pointers in no other way.
            (Op::Variable | Op::AccessChain | Op::FunctionParameter, &[ty, id, ..])
                if self.shared.contains(&ty) =>
            {
                self.shared.insert(id);
            }
            _ => {}
        }
        let mut operands = operands.to_vec();
        if let Some((pointer, access)) = access(op)
            && operands.get(pointer).is_some_and(|id| self.shared.contains(id))
            && access <= operands.len()
        {
            // NonPrivate has no operand, so the operands of the other bits keep their places.
            operands.resize(operands.len().max(access + 1), 0);
            operands[access] |= NON_PRIVATE;
        }
        if let (Op::ControlBarrier | Op::MemoryBarrier, Some(last)) = (op, operands.last_mut()) {
            *last = self.exchanging.get(last).copied().unwrap_or(*last);
        }
        self.push(op, &operands);
        if let (Op::Constant, &[ty, id, value]) = (op, operands.as_slice())
            && self.semantics.contains(&id)
            && value & ORDERING != 0
            && value & MEMORY != 0
            && value & EXCHANGE == 0
        {
            let exchanging = self.words[BOUND];
            self.words[BOUND] += 1;
            self.exchanging.insert(id, exchanging);
            self.push(Op::Constant, &[ty, exchanging, exchange(value)]);
        }
    }

    fn push(&mut self, op: Op, operands: &[u32]) {
        self.words.push((operands.len() as u32 + 1) << 16 | op as u32);
        self.words.extend(operands);
    }
}

/// Returns the semantics of a barrier that exchanges values. A subgroup's exchanges them through workgroup
/// memory.
fn exchange(semantics: u32) -> u32 {
    let of_subgroup = MemorySemantics::SUBGROUP_MEMORY.bits();
    let memory = match semantics & of_subgroup {
        0 => semantics,
        _ => semantics & !of_subgroup | MemorySemantics::WORKGROUP_MEMORY.bits(),
    };
    memory | EXCHANGE
}

/// Returns true for memory that invocations exchange values through. Uniforms are constant.
fn is_shared(class: u32) -> bool {
    class == StorageClass::Workgroup as u32 || class == StorageClass::StorageBuffer as u32
}

/// Returns the operand of an instruction that is its pointer, and the one after which its memory
/// operands follow, if it accesses memory. Atomic instructions are never private.
fn access(op: Op) -> Option<(usize, usize)> {
    match op {
        Op::Load => Some((2, 3)),
        Op::Store => Some((0, 2)),
        Op::CooperativeMatrixLoadKHR => Some((2, 5)),
        Op::CooperativeMatrixStoreKHR => Some((0, 4)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a module of `memory_model` with an access of each kind to memory of `class`, and a barrier
    /// with `semantics`.
    fn module(memory_model: MemoryModel, class: StorageClass, semantics: u32) -> Vec<u32> {
        let mut words = vec![0x0723_0203, 0x0001_0600, 0, 20, 0];
        let instructions: [(Op, &[u32]); 12] = [
            (Op::MemoryModel, &[0, memory_model as u32]),
            (Op::TypePointer, &[1, class as u32, 2]),
            (Op::Constant, &[3, 4, semantics]),
            // The same number, which no barrier uses.
            (Op::Constant, &[3, 5, semantics]),
            (Op::Variable, &[1, 6, class as u32]),
            (Op::AccessChain, &[1, 7, 6, 5]),
            (Op::Load, &[2, 8, 6]),
            (Op::Load, &[2, 9, 7, MemoryAccess::ALIGNED.bits(), 16]),
            (Op::Store, &[7, 8]),
            (Op::CooperativeMatrixLoadKHR, &[10, 11, 7, 5, 5]),
            (Op::CooperativeMatrixStoreKHR, &[7, 11, 5, 5]),
            (Op::ControlBarrier, &[5, 5, 4]),
        ];
        for (op, operands) in instructions {
            words.push((operands.len() as u32 + 1) << 16 | op as u32);
            words.extend(operands);
        }
        words
    }

    #[test]
    fn shared_memory_is_marked() {
        for class in [StorageClass::Workgroup, StorageClass::StorageBuffer] {
            let marked = with_memory_model(&module(MemoryModel::Vulkan, class, 0x108));
            assert_eq!(marked[..HEADER], [0x0723_0203, 0x0001_0600, 0, 21, 0]);
            let found: Vec<_> = instructions(&marked).skip(2).collect();
            let expected: [(Op, &[u32]); 11] = [
                (Op::Constant, &[3, 4, 0x108]),
                (Op::Constant, &[3, 20, 0x6108]),
                (Op::Constant, &[3, 5, 0x108]),
                (Op::Variable, &[1, 6, class as u32]),
                (Op::AccessChain, &[1, 7, 6, 5]),
                (Op::Load, &[2, 8, 6, 0x20]),
                (Op::Load, &[2, 9, 7, 0x22, 16]),
                (Op::Store, &[7, 8, 0x20]),
                (Op::CooperativeMatrixLoadKHR, &[10, 11, 7, 5, 5, 0x20]),
                (Op::CooperativeMatrixStoreKHR, &[7, 11, 5, 5, 0x20]),
                (Op::ControlBarrier, &[5, 5, 20]),
            ];
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn a_barrier_of_a_subgroup_orders_workgroup_memory() {
        let marked = with_memory_model(&module(MemoryModel::Vulkan, StorageClass::Workgroup, 0x88));
        assert!(instructions(&marked).any(|found| found == (Op::Constant, &[3, 20, 0x6108])));
    }

    #[test]
    fn other_modules_stay_as_they_are() {
        let glsl = module(MemoryModel::GLSL450, StorageClass::Workgroup, 0x108);
        let private = module(MemoryModel::Vulkan, StorageClass::Function, 0x8);
        let mut cut = module(MemoryModel::Vulkan, StorageClass::Workgroup, 0x108);
        cut.pop();
        let mut unknown = module(MemoryModel::Vulkan, StorageClass::Workgroup, 0x108);
        unknown[HEADER + 3] = 0x0004_ffff;
        let no_length = [&glsl[..HEADER], &[Op::Nop as u32]].concat();
        for words in [glsl, private, cut, unknown, no_length, vec![], vec![1, 2, 3]] {
            assert_eq!(with_memory_model(&words), words);
        }
    }
}
