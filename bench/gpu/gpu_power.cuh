/* bench/gpu/gpu_power.cuh - a kernel under long load: time, energy and clock once the card has settled.
 *
 * An H200 that reads memory at full speed is near its 700 W, and lowers its clock within a second where the tensor
 * cores work as well: what a kernel takes for some milliseconds is then less than what it takes in a step that goes on.
 * With $GPU_BENCH_SUSTAINED set, time_us (gpu_bench.cuh) also replays its graph for 0.7 s, then for 0.8 s more between
 * two readings of the card's energy counter, and prints what a launch took of both. NVML is opened when it is wanted.
 */
#pragma once
#include <chrono>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

struct gpu_power {
    void *device;
    int (*energy_mj)(void *, unsigned long long *); /* nvmlDeviceGetTotalEnergyConsumption */
    int (*clock_mhz)(void *, int, unsigned *);      /* nvmlDeviceGetClockInfo, 1: the SMs' */
};

/* The first GPU; false: NVML does not answer. */
static bool gpu_power_open(struct gpu_power *p)
{
    void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    int (*init)(void) = nvml ? (int (*)(void))dlsym(nvml, "nvmlInit_v2") : NULL;
    int (*handle)(unsigned, void **) =
        nvml ? (int (*)(unsigned, void **))dlsym(nvml, "nvmlDeviceGetHandleByIndex_v2") : NULL;

    if (!init || !handle || init() || handle(0, &p->device)) return false;
    p->energy_mj = (int (*)(void *, unsigned long long *))dlsym(nvml, "nvmlDeviceGetTotalEnergyConsumption");
    p->clock_mhz = (int (*)(void *, int, unsigned *))dlsym(nvml, "nvmlDeviceGetClockInfo");
    return p->energy_mj && p->clock_mhz;
}

static double gpu_power_seconds(void)
{
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/* Replays for `seconds`; returns how many times, and the mean clock. */
static long gpu_power_replay(const struct gpu_power *p, cudaGraphExec_t exec, cudaStream_t stream, double seconds,
                             double *mhz)
{
    const double end = gpu_power_seconds() + seconds;
    double sum = 0;
    long n = 0;

    do {
        unsigned now = 0;

        for (int i = 0; i < 4; i++, n++) cudaGraphLaunch(exec, stream);
        cudaStreamSynchronize(stream);
        p->clock_mhz(p->device, 1, &now);
        sum += now;
    } while (gpu_power_seconds() < end);
    *mhz = sum / (double)(n / 4);
    return n;
}

/* Nothing without $GPU_BENCH_SUSTAINED. */
static void gpu_power_print(cudaGraphExec_t exec, cudaStream_t stream, int per_graph)
{
    static struct gpu_power power;
    static bool is_open;
    unsigned long long from = 0, to = 0;
    double mhz, start, seconds;
    long n;

    if (!getenv("GPU_BENCH_SUSTAINED")) return;
    if (!is_open && !gpu_power_open(&power)) {
        printf("  [NVML does not answer]");
        return;
    }
    is_open = true;
    gpu_power_replay(&power, exec, stream, 0.7, &mhz);
    power.energy_mj(power.device, &from);
    start = gpu_power_seconds();
    n = gpu_power_replay(&power, exec, stream, 0.8, &mhz) * per_graph;
    seconds = gpu_power_seconds() - start;
    power.energy_mj(power.device, &to);
    printf("  [sustained %.2f us, %.3f mJ, %.0f W, %.0f MHz]", seconds * 1e6 / (double)n,
           (double)(to - from) / (double)n, (double)(to - from) / seconds / 1e3, mhz);
    fflush(stdout);
}
