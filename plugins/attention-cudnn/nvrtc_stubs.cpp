// nvrtc_stubs.cpp: the headers of cuDNN's frontend call NVRTC for operations that this plugin does not use. These stubs
// keep the plugin from depending on that library at run time.
#include <nvrtc.h>

namespace {
constexpr nvrtcResult none = NVRTC_ERROR_INTERNAL_ERROR;
}

nvrtcResult nvrtcCreateProgram(nvrtcProgram*, const char*, const char*, int, const char* const*, const char* const*) {
  return none;
}
nvrtcResult nvrtcDestroyProgram(nvrtcProgram*) {
  return none;
}
nvrtcResult nvrtcCompileProgram(nvrtcProgram, int, const char* const*) {
  return none;
}
nvrtcResult nvrtcGetPTXSize(nvrtcProgram, size_t*) {
  return none;
}
nvrtcResult nvrtcGetPTX(nvrtcProgram, char*) {
  return none;
}
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram, size_t*) {
  return none;
}
nvrtcResult nvrtcGetCUBIN(nvrtcProgram, char*) {
  return none;
}
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram, size_t*) {
  return none;
}
nvrtcResult nvrtcGetProgramLog(nvrtcProgram, char*) {
  return none;
}
