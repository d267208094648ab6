#include "check/graph_capture.h"

#include "check/context.h"

#include <dlfcn.h>

namespace fvlm::check {
namespace {

using Handle = void*;

// The entry points of the CUDA driver that are used here.
struct Driver {
  int (*context)(Handle*);
  int (*use_context)(Handle);
  int (*primary_context)(Handle*, int device);
  int (*synchronize)();
  int (*make_stream)(Handle*, unsigned flags);
  int (*destroy_stream)(Handle);
  int (*begin)(Handle stream, int mode);
  int (*end)(Handle stream, Handle* graph);
  int (*nodes)(Handle graph, Handle* nodes, size_t* count);
  int (*instantiate)(Handle* executable, Handle graph, unsigned long long flags);
  int (*launch)(Handle executable, Handle stream);
  int (*wait)(Handle stream);
  int (*destroy_executable)(Handle);
  int (*destroy_graph)(Handle);
  int (*text)(int status, const char** text);
};

constexpr unsigned not_with_the_null_stream = 1;
constexpr int forbidden_on_every_thread = 0;

const Driver& driver() {
  static const Driver found = [] {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    auto find = [&](const char* symbol, auto& function) {
      void* address = library ? dlsym(library, symbol) : nullptr;
      if (!address) throw RowAborted{State::failed, fmt::format("the driver has no {}", symbol)};
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(address);
    };
    Driver driver;
    find("cuCtxGetCurrent", driver.context);
    find("cuCtxSetCurrent", driver.use_context);
    find("cuDevicePrimaryCtxRetain", driver.primary_context);
    find("cuCtxSynchronize", driver.synchronize);
    find("cuStreamCreate", driver.make_stream);
    find("cuStreamDestroy_v2", driver.destroy_stream);
    find("cuStreamBeginCapture_v2", driver.begin);
    find("cuStreamEndCapture", driver.end);
    find("cuGraphGetNodes", driver.nodes);
    find("cuGraphInstantiateWithFlags", driver.instantiate);
    find("cuGraphLaunch", driver.launch);
    find("cuStreamSynchronize", driver.wait);
    find("cuGraphExecDestroy", driver.destroy_executable);
    find("cuGraphDestroy", driver.destroy_graph);
    find("cuGetErrorString", driver.text);
    return driver;
  }();
  return found;
}

std::string failure(const char* what, int status) {
  if (status == 0) return "";
  const char* text = nullptr;
  driver().text(status, &text);
  return fmt::format("{}: {}", what, text ? text : "an error that the driver does not know");
}

// A thread begins without the context that LibTorch's and the plugin's calls share.
void enter_context() {
  Handle context = nullptr;
  if (driver().context(&context) == 0 && context) return;
  int status = driver().primary_context(&context, 0);
  if (status == 0) status = driver().use_context(context);
  if (auto text = failure("no context", status); !text.empty()) throw RowAborted{State::failed, text};
}

} // namespace

Stream::Stream() {
  enter_context();
  if (auto text = failure("no stream", driver().make_stream(&stream_, not_with_the_null_stream)); !text.empty())
    throw RowAborted{State::failed, text};
}

Stream::~Stream() {
  driver().destroy_stream(stream_);
}

GraphCapture::~GraphCapture() {
  if (executable_) driver().destroy_executable(executable_);
  if (graph_) driver().destroy_graph(graph_);
}

std::string GraphCapture::begin() {
  wait_for_device();
  return failure("the recording did not begin", driver().begin(stream(), forbidden_on_every_thread));
}

std::string GraphCapture::end() {
  if (auto text = failure("the recording is not valid", driver().end(stream(), &graph_)); !text.empty()) return text;
  if (auto text = failure("the graph cannot be read", driver().nodes(graph_, nullptr, &nodes_)); !text.empty())
    return text;
  return failure("the graph cannot be instantiated", driver().instantiate(&executable_, graph_, 0));
}

std::string GraphCapture::replay() {
  wait_for_device();
  if (auto text = failure("the replay", driver().launch(executable_, stream())); !text.empty()) return text;
  return failure("the replay", driver().wait(stream()));
}

void wait_for_device() {
  enter_context();
  if (auto text = failure("the device", driver().synchronize()); !text.empty()) throw RowAborted{State::failed, text};
}

} // namespace fvlm::check
