// The place from which on a kernel reads what the kernel ahead has stored. What it reads before that, no kernel stores. CUDA's device starts
// it early, and waits here (naga-ptx); others start it when the kernel ahead has ended.
fn wait_for_kernel_ahead() {}
