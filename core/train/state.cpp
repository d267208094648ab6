#include "train/state.h"

#include "base/error.h"
#include "base/json.h"

#include <fmt/format.h>

namespace fvlm::train {
namespace {

using Json = nlohmann::json;
constexpr int64_t format_version = 1;
constexpr const char* earlier_text_tokens = "tokens"; // in checkpoints of earlier versions

// What is not finite has no number in JSON.
Json number(double value) {
  return std::isfinite(value) ? Json(value) : Json(fmt::format("{}", value));
}

double number(const Json& json) {
  return json.is_string() ? std::stod(json.get<std::string>()) : json.get<double>();
}

} // namespace

std::string RunState::text() const {
  Json sums = Json::object();
  for (const auto& [name, value] : interval) sums[name] = number(value);
  Json last_rates = Json::object();
  for (const auto& [name, value] : rates) last_rates[name] = number(value);
  Json results = Json::object();
  for (const auto& [name, value] : evaluation) results[name] = number(value);
  return Json{{"format_version", format_version},
              {"run_id", run_id},
              {"plan_hash", plan_hash},
              {"stage", stage},
              {"step", step},
              {"stage_done", stage_done},
              {"cursor", cursor.text()},
              {"data", data},
              {"optimizer_steps", optimizer_steps},
              {"rate_scale", number(rate_scale)},
              {"split", split},
              {"crew", replicas}, // as earlier versions called them
              {"guard",
               {{"mean_loss", number(guard.mean_loss)},
                {"losses", guard.losses},
                {"in_a_row", guard.in_a_row},
                {"skipped", guard.skipped},
                {"rolled_back_to", guard.rolled_back_to}}},
              {"scaler", {{"scale", scaler.scale}, {"good_steps", scaler.good_steps}, {"overflows", scaler.overflows}}},
              {"samples", samples},
              {"text_tokens", text_tokens},
              {"frames", frames},
              {"left_out_rows", left_out_rows},
              {"interval", sums},
              {"rates", last_rates},
              {"memory", Json::parse(memory)},
              {"metrics_bytes", metrics_bytes},
              {"events_bytes", events_bytes},
              {"reference", reference},
              {"score", score ? number(*score) : Json()},
              {"evaluated_at", evaluated_at},
              {"evaluation", results},
              {"controlled_at", controlled_at},
              {"ends_here", ends_here}}
             .dump(1) +
         "\n";
}

RunState RunState::parse(std::string_view text, const std::string& where) {
  try {
    const Json json = parse_json(text, where);
    if (json.at("format_version") != format_version)
      throw Error(ErrorKind::data, "this checkpoint has the format {}, and {} is read here",
                  json.at("format_version").dump(), format_version)
          .at(where);
    RunState state;
    state.run_id = json.value("run_id", "");
    state.plan_hash = json.at("plan_hash");
    state.stage = json.at("stage");
    state.step = json.at("step");
    state.stage_done = json.at("stage_done");
    state.cursor = Cursor::parse(json.at("cursor").get<std::string>(), where);
    state.data = json.value("data", std::vector<uint64_t>{});
    state.optimizer_steps = json.at("optimizer_steps");
    state.rate_scale = number(json.at("rate_scale"));
    state.split = json.at("split");
    state.replicas = json.value("crew", 1);
    const Json& guard = json.at("guard");
    state.guard = {number(guard.at("mean_loss")), guard.at("losses"), guard.at("in_a_row"), guard.at("skipped"),
                   guard.at("rolled_back_to")};
    const Json& scaler = json.at("scaler");
    state.scaler = {scaler.at("scale"), scaler.at("good_steps"), scaler.value("overflows", int64_t{0})};
    state.samples = json.at("samples");
    state.text_tokens = json.at(json.contains("text_tokens") ? "text_tokens" : earlier_text_tokens);
    state.frames = json.at("frames");
    state.left_out_rows = json.value("left_out_rows", int64_t{0});
    for (const auto& [name, value] : json.at("interval").items())
      state.interval[name == earlier_text_tokens ? "text_tokens" : name] = number(value);
    if (json.contains("rates"))
      for (const auto& [name, value] : json["rates"].items()) state.rates[name] = number(value);
    state.memory = json.at("memory").dump();
    state.metrics_bytes = json.at("metrics_bytes");
    state.events_bytes = json.at("events_bytes");
    state.reference = json.value("reference", "");
    if (!json.at("score").is_null()) state.score = number(json.at("score"));
    state.evaluated_at = json.value("evaluated_at", -1);
    if (json.contains("evaluation"))
      for (const auto& [name, value] : json["evaluation"].items()) state.evaluation[name] = number(value);
    state.controlled_at = json.value("controlled_at", state.step); // which earlier versions did not say
    state.ends_here = json.value("ends_here", false);
    return state;
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorKind::data, "this is no state of a run: {}", error.what()).at(where);
  } catch (const std::logic_error& error) {
    throw Error(ErrorKind::data, "this is no state of a run: {}", error.what()).at(where);
  }
}

} // namespace fvlm::train
