// plan.json and parameters.json.
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "report/loose_json.h"
#include "report/recorded_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace fvlm::report {
namespace {

using Ordered = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr uint64_t most_bytes = uint64_t{64} << 20;

// ".key" or ["any key"], as the Plan's paths have it.
std::string key_part(const std::string& key) {
  bool plain = !key.empty() && std::all_of(key.begin(), key.end(),
                                           [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '-'; });
  return plain ? "." + key : fmt::format("[\"{}\"]", key);
}

std::string joined(const std::string& path, std::string part) {
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

// Entries of these lists are told by their names, of all others by their number.
bool named(const std::string& key) {
  return key == "stages" || key == "sets";
}

class PlanWalk {
 public:
  PlanWalk(RecordedRun& run, const Json& sources) : run_(run), sources_(sources) {}

  void value(const Ordered& value, const std::string& path, const std::string& key) {
    if (value.is_object() && !value.empty()) {
      for (const auto& [name, entry] : value.items()) this->value(entry, joined(path, key_part(name)), name);
    } else if (value.is_array() &&
               std::any_of(value.begin(), value.end(), [](const auto& e) { return e.is_structured(); })) {
      for (size_t i = 0; i < value.size(); ++i) {
        std::string name =
            named(key) && value[i].is_object()
                ? value[i].value("name", Ordered()).is_string() ? value[i]["name"].get<std::string>() : ""
                : "";
        this->value(value[i], name.empty() ? fmt::format("{}[{}]", path, i + 1) : path + key_part(name), "");
      }
    } else {
      leaf(value, path);
    }
  }

 private:
  void leaf(const Ordered& value, const std::string& path) {
    PlanValue out{path, "", {}, ""};
    if (auto source = sources_.find(path); source != sources_.end() && source->is_string())
      out.source = source->get<std::string>();
    bool numbers =
        value.is_array() && std::all_of(value.begin(), value.end(), [](const auto& e) { return e.is_number(); });
    if (numbers && value.size() > 8) {
      for (const auto& point : value) out.curve.push_back(point.get<double>());
      auto [least, most] = std::minmax_element(out.curve.begin(), out.curve.end());
      out.value = fmt::format("{} points, {:.4g} to {:.4g}", out.curve.size(), *least, *most);
    } else if (value.is_structured()) {
      std::vector<std::string> parts;
      for (const auto& part : value) parts.push_back(scalar_text(part));
      out.value = parts.empty() ? "none" : join(parts, ", ");
    } else {
      out.value = scalar_text(value);
    }
    run_.plan.push_back(std::move(out));
  }

  RecordedRun& run_;
  const Json& sources_;
};

void read_stages(RecordedRun& run, const Json& plan) {
  for (const auto& planned : list(plan, "stages")) {
    Stage stage;
    stage.name = text(planned, "name");
    if (stage.name.empty() || run.find(stage.name)) continue;
    stage.planned = true;
    stage.steps = count(planned, "steps");
    stage.samples = count(planned, "samples");
    stage.log_every = count(plan, "log_every");
    std::vector<std::string> terms;
    for (const auto& term : list(planned, "objective")) {
      std::string kind = text(term, "kind");
      if (kind == "next_token" && text(term, "on") == "answer") kind = "next token of answers";
      if (kind == "next_token") kind = "next token";
      if (kind == "dpo" || kind == "kl")
        std::transform(kind.begin(), kind.end(), kind.begin(), [](unsigned char c) { return std::toupper(c); });
      if (!kind.empty()) terms.push_back(kind);
    }
    stage.objective = join(terms, " + ");
    run.stages.push_back(std::move(stage));
  }
}

void read_parameters(RecordedRun& run) {
  fs::path file = run.folder / "parameters.json";
  if (!fs::exists(file)) {
    run.notes.push_back("parameters.json is not there: no table of parameters");
    return;
  }
  try {
    Json document = parse_json(read_file(file, most_bytes), file.string());
    if (!document.is_array()) throw Error(ErrorKind::data, "parameters.json: a list of stages was expected");
    for (const auto& stage : document)
      for (const auto& entry : list(stage, "groups")) {
        ParameterGroup group;
        group.name = text(entry, "name");
        group.tensors = count(entry, "tensors").value_or(0);
        group.parameters = count(entry, "parameters").value_or(0);
        const Json* trained = find(entry, "trained");
        group.trained = trained && trained->is_boolean() && trained->get<bool>();
        group.lr = number(entry, "lr");
        group.weight_decay = number(entry, "weight_decay");
        run.parameters[text(stage, "stage")].push_back(std::move(group));
      }
  } catch (const Error& error) {
    run.notes.push_back(error.text());
  }
}

} // namespace

void read_plan(RecordedRun& run) {
  fs::path file = run.folder / "plan.json";
  std::string bytes = read_file(file, most_bytes);
  Json document = parse_json(bytes, file.string());
  const Json* plan = find(document, "plan");
  if (!plan || !plan->is_object())
    throw Error(ErrorKind::data, "this is no plan of a run: it has no object \"plan\"").at(file.string());
  run.name = text(*plan, "name");
  run.hash = text(document, "hash");
  run.recipe = text(document, "recipe");
  run.precision = text(*plan, "precision");
  if (const Json* seed = find(*plan, "seed")) run.seed = seed->dump();
  read_stages(run, *plan);
  const Json* sources = find(document, "sources");
  // Once more in the order in which it was written, which is the schema's.
  PlanWalk(run, sources && sources->is_object() ? *sources : Json::object())
      .value(Ordered::parse(bytes)["plan"], "", "");
  read_parameters(run);
}

} // namespace fvlm::report
