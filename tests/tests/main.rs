//! All tests that need a device, in one program: linking Burn once is dear enough.

mod suite;
