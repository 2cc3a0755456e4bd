//! Log-sum-exps of dense passes, for anchors that select by those of an earlier step; see [`crate::Selection::Riding`].

use burn::{module::Module, tensor::Tensor};

use super::{slot::SlotKey, stored::bytes};

/// The last ones of each slot, of its grouped rows: `[batch, heads, rows]`.
#[derive(Module, Debug, Default)]
pub(crate) struct Earlier {
    kept: Vec<Kept>,
}

#[derive(Module, Debug)]
struct Kept {
    #[module(skip)]
    key: SlotKey,
    lse: Tensor<3>,
}

impl Earlier {
    /// Keeps those of a dense pass instead of what was kept before.
    pub fn keep(&mut self, key: &SlotKey, lse: Tensor<3>) {
        match self.kept.iter_mut().find(|kept| kept.key == *key) {
            Some(kept) => kept.lse = lse,
            None => self.kept.push(Kept { key: key.clone(), lse }),
        }
    }

    /// Those of the last dense pass, which are forgotten; `None` without one, or if it was of other sizes.
    pub fn take(&mut self, key: &SlotKey, dims: [usize; 3]) -> Option<Tensor<3>> {
        let at = self.kept.iter().position(|kept| kept.key == *key)?;
        let lse = self.kept.swap_remove(at).lse;
        (lse.dims() == dims).then_some(lse)
    }

    /// Bytes of what is kept.
    pub fn size_in_bytes(&self) -> usize {
        self.kept.iter().map(|kept| bytes(&kept.lse)).sum()
    }
}
