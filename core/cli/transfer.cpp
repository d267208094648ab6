#include "cli/transfer.h"

#include "base/error.h"
#include "base/log.h"
#include "base/table.h"
#include "base/text.h"
#include "cli/plugin_options.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace fvlm::cli {
namespace {

constexpr std::pair<const char*, DType> dtypes[] = {
    {"fp32", DType::f32}, {"bf16", DType::bf16}, {"fp16", DType::f16}, {"fp64", DType::f64}, {"quantized", DType::i32}};

const char* option_of(DType dtype) {
  for (auto [name, each] : dtypes)
    if (each == dtype) return name;
  throw Error(ErrorKind::internal, "weights of no floating type");
}

nlohmann::ordered_json report_json(const TransferReport& report, const std::string& out) {
  nlohmann::ordered_json parts = nlohmann::ordered_json::object();
  for (const auto& each : report.parts) {
    auto& json = parts[each.name] = {{"parameters", each.parameters}, {"bytes", each.bytes}};
    for (auto [dtype, count] : each.tensors) json["tensors"][option_of(dtype)] = count;
  }
  nlohmann::ordered_json overflowed = nlohmann::ordered_json::object(), not_finite = overflowed;
  for (const auto& [name, count] : report.overflowed) overflowed[name] = count;
  for (const auto& [name, count] : report.not_finite) not_finite[name] = count;
  nlohmann::ordered_json dequantized = nlohmann::ordered_json::object();
  for (const auto& [form, each] : report.dequantized)
    dequantized[form] = {{"weights", each.weights}, {"bytes_before", each.bytes_before}, {"bytes", each.bytes}};
  return {{"model", out},
          {"parts", parts},
          {"overflowed", overflowed},
          {"not_finite", not_finite},
          {"dequantized", dequantized}};
}

void print_table(const TransferReport& report, const std::string& out) {
  TextTable table({"part", "parameters", "stored as", "size"});
  uint64_t parameters = 0, bytes = 0;
  for (const auto& each : report.parts) {
    std::vector<std::string> types;
    for (auto [dtype, count] : each.tensors) types.emplace_back(option_of(dtype));
    table.row({each.name, grouped(static_cast<int64_t>(each.parameters)), join(types, ", "), human_bytes(each.bytes)});
    parameters += each.parameters, bytes += each.bytes;
  }
  table.row({"all", grouped(static_cast<int64_t>(parameters)), "", human_bytes(bytes)});
  fmt::print("{}\n\n{}", out, table.text());
  for (const auto& [form, each] : report.dequantized)
    fmt::print("\n{} weights were {}, {}, and are plain numbers now, {}\n", each.weights, form,
               human_bytes(each.bytes_before), human_bytes(each.bytes));
}

} // namespace

std::optional<DType> dtype_option(const ParsedOptions& parsed) {
  const auto text = parsed.value("dtype");
  if (!text) return std::nullopt;
  std::vector<std::string> names;
  for (auto [name, dtype] : dtypes) {
    if (dtype == DType::f64 || !is_floating(dtype)) continue; // can be read, but not chosen
    if (*text == name) return dtype;
    names.emplace_back(name);
  }
  throw Error(ErrorKind::usage, "--dtype: expected {}, got '{}'", join_or(names), *text);
}

void warn_of_values(const TransferReport& report) {
  for (const auto& [name, count] : report.not_finite)
    log_warning("{}: {} of its values are NaN or infinite, so what the model computes is worthless; fetch the weights "
                "again, or take an earlier checkpoint",
                name, grouped(static_cast<int64_t>(count)));
  for (const auto& [name, count] : report.overflowed)
    log_warning("{}: {} of its values overflowed this dtype and became infinite; use bf16 or fp32", name, count);
}

void print_transfer(const TransferReport& report, const std::string& out, bool json) {
  warn_of_values(report);
  if (json)
    fmt::print("{}", dump(report_json(report, out)));
  else
    print_table(report, out);
}

} // namespace fvlm::cli
