//! Log-sum-exps of dense passes, for anchors that select by those of an earlier step; see [`crate::Selection::Riding`].

use burn::{
    module::Module,
    tensor::{Device, Tensor},
};

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
    #[module(skip)]
    step: usize,
    lse: Tensor<3>,
}

impl Earlier {
    /// Keeps those of the dense pass of `step` instead of what was kept before.
    pub fn keep(&mut self, key: &SlotKey, step: usize, lse: Tensor<3>) {
        self.kept.retain(|kept| kept.key != *key);
        self.kept.push(Kept { key: key.clone(), step, lse });
    }

    /// Those of the last dense pass, which are forgotten.
    ///
    /// # Errors
    ///
    /// Why there are none for rows `[batch, heads, rows]` on `device`.
    pub fn take(&mut self, key: &SlotKey, dims: [usize; 3], device: &Device) -> Result<Tensor<3>, &'static str> {
        let at = self.kept.iter().position(|kept| kept.key == *key).ok_or("no dense pass came before the anchor")?;
        let lse = self.kept.swap_remove(at).lse;
        if lse.dims() != dims {
            return Err("the dense pass before the anchor was of other sizes");
        }
        if lse.device() != *device {
            return Err("the dense pass before the anchor was on another device");
        }
        Ok(lse)
    }

    /// Forgets those of passes before the anchor `step`, which has not taken them.
    pub fn forget_before(&mut self, step: usize) {
        self.kept.retain(|kept| kept.step >= step);
    }

    /// Bytes of what is kept.
    pub fn size_in_bytes(&self) -> usize {
        self.kept.iter().map(|kept| bytes(&kept.lse)).sum()
    }
}
