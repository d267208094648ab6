// Reads what only the page shows of a run's plan.json and parameters.json.
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "report/loose_json.h"
#include "report/page_input.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace fvlm::report {
namespace {

using Ordered = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr uint64_t max_file_bytes = uint64_t{64} << 20;

// Writes a key as it stands in the paths of the Plan: ".key", or ["any key"] where it has other characters.
std::string path_component(const std::string& key) {
  bool plain =
      !key.empty() && std::ranges::all_of(key, [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '-'; });
  return plain ? "." + key : fmt::format("[\"{}\"]", key);
}

std::string join_path(const std::string& path, std::string part) {
  if (path.empty() && part.starts_with('.')) part.erase(0, 1);
  return path + part;
}

std::string scalar_text(const Ordered& value) {
  if (value.is_null()) return "none";
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (value.is_number_integer()) {
    auto whole = value.get<int64_t>();
    return whole >= 10000 || whole <= -10000 ? grouped(whole) : std::to_string(whole);
  }
  return value.dump(-1, ' ', false, Ordered::error_handler_t::replace);
}

// The entries of these lists appear in paths by their names, those of all other lists by their index.
bool is_indexed_by_name(const std::string& key) {
  return key == "stages" || key == "sets";
}

// Flattens the Plan to a list of its leaf values.
class PlanFlattener {
 public:
  explicit PlanFlattener(const Json& sources) : sources_(sources) {}

  std::vector<PlanValue> flatten(const Ordered& plan) {
    visit(plan, "", "");
    return std::move(values_);
  }

 private:
  void visit(const Ordered& value, const std::string& path, const std::string& key) {
    if (value.is_object() && !value.empty()) {
      for (const auto& [name, entry] : value.items()) visit(entry, join_path(path, path_component(name)), name);
    } else if (value.is_array() && std::ranges::any_of(value, [](const auto& e) { return e.is_structured(); })) {
      for (size_t i = 0; i < value.size(); ++i) {
        std::string name =
            is_indexed_by_name(key) && value[i].is_object()
                ? value[i].value("name", Ordered()).is_string() ? value[i]["name"].get<std::string>() : ""
                : "";
        visit(value[i], name.empty() ? fmt::format("{}[{}]", path, i + 1) : path + path_component(name), "");
      }
    } else {
      leaf(value, path);
    }
  }

  void leaf(const Ordered& value, const std::string& path) {
    PlanValue out{path, "", {}, ""};
    if (auto source = sources_.find(path); source != sources_.end() && source->is_string())
      out.source = source->get<std::string>();
    bool numbers = value.is_array() && std::ranges::all_of(value, [](const auto& e) { return e.is_number(); });
    if (numbers && value.size() > 8) {
      for (const auto& point : value) out.curve.push_back(point.get<double>());
      auto [min, max] = std::minmax_element(out.curve.begin(), out.curve.end());
      out.value = fmt::format("{} points, {:.4g} to {:.4g}", out.curve.size(), *min, *max);
    } else if (value.is_structured()) {
      std::vector<std::string> parts;
      for (const auto& part : value) parts.push_back(scalar_text(part));
      out.value = parts.empty() ? "none" : join(parts, ", ");
    } else {
      out.value = scalar_text(value);
    }
    values_.push_back(std::move(out));
  }

  const Json& sources_;
  std::vector<PlanValue> values_;
};

} // namespace

std::vector<PlanValue> read_plan_values(const fs::path& folder) {
  // The order of plan.json is that of the schema, so it is kept.
  const Ordered document = Ordered::parse(read_file(folder / "plan.json", max_file_bytes));
  const auto found = document.find("sources");
  const Json sources = found != document.end() && found->is_object() ? Json(*found) : Json::object();
  return PlanFlattener(sources).flatten(document.at("plan"));
}

std::map<std::string, std::vector<ParameterGroup>> read_parameters(const fs::path& folder,
                                                                   std::vector<std::string>& notes) {
  std::map<std::string, std::vector<ParameterGroup>> parameters;
  fs::path file = folder / "parameters.json";
  if (!fs::exists(file)) {
    notes.push_back("parameters.json is not there: no table of parameters");
    return parameters;
  }
  try {
    Json document = parse_json(read_file(file, max_file_bytes), file.string());
    if (!document.is_array()) throw Error(ErrorKind::data, "parameters.json: a list of stages was expected");
    for (const auto& stage : document)
      for (const auto& entry : list(stage, "groups")) {
        ParameterGroup group;
        group.name = text(entry, "name");
        group.tensors = count(entry, "tensors").value_or(0);
        group.parameters = count(entry, "parameters").value_or(0);
        group.trained = flag(entry, "trained");
        group.lr = number(entry, "lr");
        group.others_lr = number(entry, "others_lr");
        group.weight_decay = number(entry, "weight_decay");
        parameters[text(stage, "stage")].push_back(std::move(group));
      }
  } catch (const Error& error) {
    notes.push_back(error.text());
  }
  return parameters;
}

} // namespace fvlm::report
