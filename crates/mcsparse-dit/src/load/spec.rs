//! The parameters that a model has, read off without allocating one.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;
use burn_store::burn_pack::Tensor as StoredTensor;

use super::format::{file_name, own_name};
use super::{Mismatch, Misshaped};

/// One parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Spec {
    /// Its name in this crate.
    pub own: String,
    /// Its name in files of diffusers.
    pub file: String,
    /// Its shape in files.
    pub shape: Vec<usize>,
}

impl Spec {
    pub fn values(&self) -> usize {
        self.shape.iter().product()
    }
}

/// Every parameter, in the order of the layers.
pub(super) fn specs<M: Module>(model: &M) -> Vec<Spec> {
    let mut visitor = Visitor::default();
    model.visit(&mut visitor);
    visitor.specs
}

/// Number of values in all parameters.
pub(crate) fn parameters<M: Module>(model: &M) -> usize {
    specs(model).iter().map(Spec::values).sum()
}

#[derive(Default)]
struct Visitor {
    /// Names, and whether each is that of a linear layer.
    path: Vec<(String, bool)>,
    specs: Vec<Spec>,
}

impl ModuleVisitor for Visitor {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let own = self.path.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(".");
        let mut shape = param.lazy_shape().to_vec();
        let in_linear = self.path.iter().any(|(_, linear)| *linear);
        if in_linear && shape.len() == 2 {
            // Files hold the matrices of linear layers the other way round.
            shape.reverse();
        }
        self.specs.push(Spec { file: file_name(&own), own, shape });
    }

    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.push((name.to_owned(), container == "Struct:Linear"));
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }
}

/// Holds the tensors of a file, each with its name there, against the parameters of a model.
pub(super) fn compare(specs: &[Spec], tensors: &[(String, StoredTensor)]) -> Mismatch {
    let mut mismatch = Mismatch::default();
    // By what they mean here: one may be there under several names.
    let mut names: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (name, tensor) in tensors {
        names.entry(own_name(&tensor.name)).or_default().push(name);
    }
    names.retain(|_, names| names.len() > 1);
    mismatch.unreadable =
        names.values().map(|names| format!("{}: one tensor by several names", names.join(", "))).collect();
    let mut found: BTreeMap<&str, &StoredTensor> = tensors
        .iter()
        .map(|(_, tensor)| (tensor.name.as_str(), tensor))
        .filter(|(name, _)| !names.contains_key(&own_name(name)))
        .collect();
    for spec in specs.iter().filter(|spec| !names.contains_key(&own_name(&spec.file))) {
        match found.remove(spec.file.as_str()) {
            None => mismatch.missing.push(spec.file.clone()),
            Some(tensor) if !tensor.dtype.is_float() => {
                mismatch.unreadable.push(format!("{}: {:?} is no float", spec.file, tensor.dtype));
            }
            Some(tensor) if tensor.shape.to_vec() != spec.shape => {
                let (expected, got) = (spec.shape.clone(), tensor.shape.to_vec());
                mismatch.misshaped.push(Misshaped { name: spec.file.clone(), expected, got });
            }
            Some(_) => {}
        }
    }
    mismatch.unexpected = found.into_keys().map(str::to_owned).collect();
    mismatch
}
