/* A driver with one GPU that is as the environment says: libcuda.so.1 as far as the engine asks it. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int told(const char* name, int fallback) {
  const char* text = getenv(name);
  return text ? atoi(text) : fallback;
}

int cuInit(unsigned flags) {
  (void)flags;
  return told("FAKE_INIT", 0);
}
int cuDriverGetVersion(int* version) {
  *version = told("FAKE_DRIVER", 13000);
  return 0;
}
#ifndef STUB
int cuDeviceGetCount(int* count) {
  *count = told("FAKE_COUNT", 1);
  return 0;
}
int cuDeviceGet(int* device, int index) {
  *device = index;
  return 0;
}
int cuDeviceGetName(char* name, int size, int device) {
  (void)device;
  snprintf(name, (size_t)size, "Fake GPU");
  return 0;
}
int cuDeviceTotalMem_v2(size_t* bytes, int device) {
  (void)device;
  *bytes = (size_t)80 << 30;
  return 0;
}
int cuDeviceGetPCIBusId(char* bus, int size, int device) {
  (void)device;
  snprintf(bus, (size_t)size, "0000:1B:00.0");
  return 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  (void)device;
  const int capability = told("FAKE_CAPABILITY", 90);
  *value = attribute == 75 ? capability / 10 : attribute == 76 ? capability % 10 : told("FAKE_COMPUTE_MODE", 0);
  return 0;
}
#endif
