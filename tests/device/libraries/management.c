/* What others do on the GPU of driver.c, as the environment says: libnvidia-ml.so.1 as far as the engine asks it. */
#include <stdlib.h>
#include <string.h>

struct memory {
  unsigned long long total, free, used;
};
struct process {
  unsigned id;
  unsigned long long bytes;
  unsigned gpu_instance, compute_instance;
};

static unsigned long long told(const char* name, unsigned long long fallback) {
  const char* text = getenv(name);
  return text ? strtoull(text, NULL, 10) : fallback;
}

int nvmlInit_v2(void) {
  return (int)told("FAKE_MANAGEMENT", 0);
}
int nvmlShutdown(void) {
  return 0;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* bus, void** device) {
  static int gpu;
  *device = &gpu;
  return strcmp(bus, "0000:1B:00.0") ? 6 : 0;
}
int nvmlDeviceGetMemoryInfo(void* device, struct memory* memory) {
  (void)device;
  memory->total = told("FAKE_TOTAL_MIB", 80 << 10) << 20;
  memory->free = told("FAKE_FREE_MIB", 79 << 10) << 20;
  memory->used = memory->total - memory->free;
  return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* count, struct process* processes) {
  (void)device;
  const unsigned long long id = told("FAKE_PROCESS", 0);
  *count = id != 0;
  if (id) {
    processes[0].id = (unsigned)id;
    processes[0].bytes = told("FAKE_PROCESS_MIB", 0) ? told("FAKE_PROCESS_MIB", 0) << 20 : ~0ULL;
  }
  return 0;
}
/* Not supported where the environment says nothing. */
static int reading(const char* name, unsigned* value) {
  *value = (unsigned)told(name, 0);
  return *value ? 0 : 3;
}
int nvmlDeviceGetClockInfo(void* device, int which, unsigned* megahertz) {
  (void)device;
  return which == 1 ? reading("FAKE_SM_MEGAHERTZ", megahertz) : 2;
}
int nvmlDeviceGetPowerUsage(void* device, unsigned* milliwatts) {
  (void)device;
  return reading("FAKE_MILLIWATTS", milliwatts);
}
