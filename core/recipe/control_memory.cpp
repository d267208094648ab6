#include "recipe/control_memory.h"

#include "base/error.h"
#include "base/utf8.h"
#include "recipe/schema/basic.h"

#include <cmath>
#include <type_traits>

namespace fvlm::recipe {
namespace {

void require_utf8(const std::string& text, const Origin& origin) {
  if (is_utf8(text)) return;
  throw Error(ErrorKind::recipe, "the memory of `control` contains a string that is not UTF-8")
      .at(where(origin))
      .advise("keep numbers or UTF-8 strings; string.char can make other bytes");
}

// JSON has no numbers that are not finite.
constexpr const char* not_finite = "#number";

Json number_json(double number) {
  if (std::isfinite(number)) return number;
  return {{not_finite, std::isnan(number) ? "nan" : number > 0 ? "inf" : "-inf"}};
}

Json with_numbers(const Json& saved) {
  if (!saved.is_structured()) return saved;
  if (saved.size() == 1 && saved.contains(not_finite)) {
    const Json& number = saved.at(not_finite);
    return number == "nan" ? std::nan("") : number == "inf" ? HUGE_VAL : -HUGE_VAL;
  }
  Json out = saved;
  for (Json& value : out) value = with_numbers(value);
  return out;
}

} // namespace

Json control_memory_json(const Value& value) {
  return std::visit(
      [&](const auto& data) -> Json {
        using Data = std::decay_t<decltype(data)>;
        if constexpr (std::is_same_v<Data, std::monostate>) {
          return nullptr;
        } else if constexpr (std::is_same_v<Data, FunctionId>) {
          throw Error(ErrorKind::recipe, "the memory of `control` contains a function; it can hold only plain values")
              .at(where(value.origin));
        } else if constexpr (std::is_same_v<Data, std::shared_ptr<const Table>>) {
          if (!data->items.empty() && !data->fields.empty())
            throw Error(ErrorKind::recipe, "a table in the memory of `control` has both numbered and named entries")
                .at(where(data->origin))
                .advise("use two tables");
          Json out = data->items.empty() ? Json::object() : Json::array();
          for (const auto& item : data->items) out.push_back(control_memory_json(item));
          for (const auto& [key, field] : data->fields) {
            require_utf8(key, data->origin);
            out[key] = control_memory_json(field);
          }
          return out;
        } else {
          if constexpr (std::is_same_v<Data, std::string>) require_utf8(data, value.origin);
          if constexpr (std::is_same_v<Data, double>) return number_json(data);
          return data;
        }
      },
      value.data);
}

Value control_memory(const Json& saved, const Origin& origin) {
  return from_json(with_numbers(saved), origin);
}

void check_controls(const Resolved& resolved) {
  if (!resolved.lua) return;
  Allowance allowance; // shared by all control functions
  for (const plan::Stage& stage : resolved.plan.stages) {
    if (!stage.control) continue;
    const auto step = static_cast<double>(stage.control->every);
    const Json metrics = {{"step", step}, {"loss", 1.0}, {"gradient_norm", 1.0}};
    const Origin here{stage.control->run.defined, 0, {}};
    const Value arguments[] = {from_json(metrics, here), from_json(Json::object(), here)};
    std::vector<Value> after;
    try {
      resolved.lua->call(FunctionId{static_cast<int>(stage.control->run.index)}, arguments, &after, &allowance);
    } catch (const Error&) {
      if (allowance.exhausted()) return;
      continue; // it may need metrics that are not given here
    }
    control_memory_json(after.at(1));
  }
}

} // namespace fvlm::recipe
