#include "cli/adapter_options.h"

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"

#include <algorithm>

namespace fvlm::cli {
namespace {

struct NamedAdapter {
  std::string name, folder;
};

NamedAdapter named(const std::string& value) {
  const size_t equals = value.find('=');
  if (equals == value.npos || equals == 0 || equals + 1 == value.size())
    throw Error(ErrorKind::usage, "--adapter: expected NAME=FOLDER, got '{}'", value)
        .advise("clients select an adapter by its name, as in --adapter french=adapters/french");
  return {value.substr(0, equals), value.substr(equals + 1)};
}

} // namespace

Options& with_adapter_option(Options& options) {
  return options.value("adapter", "FOLDER",
                       "answer with the adapters in a folder of PEFT or a checkpoint, which are for this model");
}

infer::Generator& use_adapter(const ParsedOptions& parsed, infer::Generator& generator) {
  if (const auto folder = parsed.value("adapter")) generator.use_adapter(*folder);
  return generator;
}

Options& with_adapters_option(Options& options) {
  return options.repeated_value("adapter", "NAME=FOLDER",
                                "also answer with the adapters in a folder of PEFT or a checkpoint, which are for this "
                                "model, where a request names them as its model (repeatable)");
}

std::vector<std::string> add_adapters(const ParsedOptions& parsed, const std::string& model,
                                      infer::Generator& generator) {
  std::vector<std::string> names;
  for (const std::string& value : parsed.values("adapter")) {
    const auto [name, folder] = named(value);
    if (name == model || std::ranges::find(names, name) != names.end())
      throw Error(ErrorKind::usage, "--adapter: the name '{}' is {}", name,
                  name == model ? "that of the model" : "given twice")
          .advise("give each adapter a name of its own");
    names.push_back(name);
  }
  for (const std::string& value : parsed.values("adapter")) {
    const auto [name, folder] = named(value);
    const size_t adapter = generator.add_adapter(folder);
    log_info("'{}' adds {} to the weights of the model", name, human_bytes(generator.adapter_bytes(adapter)));
  }
  return names;
}

} // namespace fvlm::cli
