// A variant as a library, with which scripts/cuda-driver.c computes: -DSOURCE='"product.cu"' -DENTRY=product.
#include "emulator.h"
#include SOURCE

template <typename Parameters> struct Call {
    static Parameters parameters;
    static void (*entry)(Parameters);
    static void run() { entry(parameters); }
};
template <typename Parameters> Parameters Call<Parameters>::parameters;
template <typename Parameters> void (*Call<Parameters>::entry)(Parameters);

template <typename Parameters>
static void call(void (*entry)(Parameters), const void* parameters, unsigned x, unsigned y, unsigned threads, unsigned bytes) {
    Call<Parameters>::entry = entry;
    memcpy(&Call<Parameters>::parameters, parameters, sizeof(Parameters));
    launch(Call<Parameters>::run, x, y, threads, bytes);
}

extern "C" void emulate(const void* parameters, unsigned x, unsigned y, unsigned threads, unsigned bytes) {
    call(ENTRY, parameters, x, y, threads, bytes);
}
