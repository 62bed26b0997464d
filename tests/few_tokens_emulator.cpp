// Runs the kernels of `clusters` on a CPU. Compile with -DEMULATED -DKERNEL_SOURCE="path of kernel.cu" and
// -DMEMORY_BYTES as a shared library.

#include "few_tokens_emulator.hpp"

#include KERNEL_SOURCE

// One cluster after the other: none needs another one.
extern "C" const char* emulate_first_launch(const First* what, int programs) {
    return emulate(first_launch, *what, programs, 1);
}
extern "C" const char* emulate_second_launch(const Second* what, int programs) {
    return emulate(second_launch, *what, programs, 1);
}
