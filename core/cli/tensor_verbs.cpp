// The verbs that are implemented in libfvlm_engine.so.
#include "cli/tensor_module.h"
#include "cli/verb.h"

namespace fvlm::cli {

int run_plugin_check(Arguments arguments) {
  return tensor_module().plugin_check(arguments);
}

int run_chat(Arguments arguments) {
  return tensor_module().chat(arguments);
}

int run_generate(Arguments arguments) {
  return tensor_module().generate(arguments);
}

int run_serve(Arguments arguments) {
  return tensor_module().serve(arguments);
}

int run_eval(Arguments arguments) {
  return tensor_module().eval(arguments);
}

int run_bench(Arguments arguments) {
  return tensor_module().bench(arguments);
}

int run_data(Arguments arguments) {
  return tensor_module().data(arguments);
}

int run_lora(Arguments arguments) {
  return tensor_module().lora(arguments);
}

int run_train(Arguments arguments) {
  return tensor_module().train(arguments);
}

int run_trace(Arguments arguments) {
  return tensor_module().trace(arguments);
}

} // namespace fvlm::cli
