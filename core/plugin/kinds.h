// The kinds of plugins that this engine supports: their names, the required functions of their tables, and the C++
// types of each.
#pragma once
#include <fvlm/fvlm.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fvlm {

// "fvlm.optimizer/1:adamw", parsed.
struct KindName {
  std::string family;  // "fvlm.optimizer/1"
  std::string variant; // "adamw"; empty where the family has one table
  std::string text() const { return variant.empty() ? family : family + ":" + variant; }
  bool operator==(const KindName&) const = default;
};

// Empty unless the text has the form "name.name/REVISION" or "name.name/REVISION:VARIANT".
std::optional<KindName> parse_kind(std::string_view text);

// A function pointer of a table.
struct TableSlot {
  std::string_view name;
  size_t offset;
  bool is_set(const void* table) const;
};

// An operation of the kind kernels. Its functions have to be implemented all or not at all.
struct TableOperation {
  std::string_view name; // "rmsnorm"
  std::vector<TableSlot> slots;
  int32_t op;                  // FVLM_OP_*
  uint32_t options;            // bits of FVLM_WITH_* that apply to it, besides FVLM_WITH_BACKWARD
  const char* sizes;           // of a query: "ROWSxWIDTH"
  bool has_inner = false;      // whether the query's `inner` applies to it
  bool has_backward = true;    // whether there is one
  bool has_epsilon = false;    // whether the query's `epsilon` applies to it: a norm
  bool has_parameters = false; // whether its backward makes gradients of parameters
  // How often it reads and writes its rows; 0 where most of its work is on matrices.
  double rows_forward = 0, rows_backward = 0;

  bool is_implemented(const void* table) const;
};

// A kind without its variant: a table type.
struct Family {
  std::string_view name;  // "fvlm.attention/1"
  std::string_view label; // "attention"
  bool has_variants;
  size_t min_size; // of the table in ABI minor 0; smaller ones are refused
  size_t size;     // of the table in the engine's headers
  std::vector<TableSlot> required;
  std::vector<TableOperation> operations; // each optional; at least one where the list is not empty

  // What is wrong with the table's data, or with the results of supports() and the like for a sample query; empty where
  // nothing is. `table` has passed every other check and has `size` bytes.
  std::string (*defect)(const void* table, const KindName& kind, fvlm_device device);
};

// The kinds that a library without a manifest may implement: those that the SDK names, and variants whose names occur
// in the library's file as strings ("fvlm.optimizer/1:lion").
std::vector<std::string> kinds_to_ask(std::string_view library);

std::span<const Family> known_families();
const Family* find_family(std::string_view name); // nullptr: not supported

// Those of the kind kernels, in the order of FVLM_OP_*.
const std::vector<TableOperation>& kernel_operations();
// nullptr for an unknown one.
const TableOperation* find_operation(int32_t op);
// "rmsnorm" for FVLM_OP_RMSNORM; "op 99" for an unknown one.
std::string operation_name(int32_t op);

// Maps a table's C++ type to its family, and its query to what selection needs. `shape` describes the query's sizes for
// the log.
template <class Table>
struct KindOf;

template <>
struct KindOf<fvlm_attention_v1> {
  using Query = fvlm_attention_query;
  static constexpr std::string_view family = "fvlm.attention/1";
  static int32_t device(const Query& query) { return query.device.type; }
  static std::string subject(const Query&) { return "attention"; }
  static std::string shape(const Query& query);
  static std::string unknown_field(const fvlm_attention_v1& table, const Query& query) {
    if (query.partial && !(table.features & FVLM_ATTENTION_PARTIAL)) return "partial";
    if (query.partial && query.window && !(table.features & FVLM_ATTENTION_PARTIAL_WINDOWS))
      return "window beside partial";
    return query.window && !(table.features & FVLM_ATTENTION_WINDOWS) ? "window" : "";
  }
};

// The functions for attention over pages, which a plugin of the kind attention may leave out, as a table of their own.
struct PagedAttentionTable {
  fvlm_table base;
  decltype(fvlm_attention_v1::supports_paged) supports;
  decltype(fvlm_attention_v1::requirements_paged) requirements;
  decltype(fvlm_attention_v1::prepare_paged) prepare;
  decltype(fvlm_attention_v1::forward_paged) forward;
  uint32_t features;
};

template <>
struct KindOf<PagedAttentionTable> {
  using Query = fvlm_paged_attention_query;
  static constexpr std::string_view family = "fvlm.attention/1";
  static int32_t device(const Query& query) { return query.device.type; }
  static std::string subject(const Query&) { return "paged attention"; }
  static std::string shape(const Query& query);
  static std::string unknown_field(const PagedAttentionTable& table, const Query& query) {
    if (query.appends && !(table.features & FVLM_ATTENTION_APPENDS)) return "appends";
    return query.window && !(table.features & FVLM_ATTENTION_WINDOWS) ? "window" : "";
  }
};

template <>
struct KindOf<fvlm_loss_v1> {
  using Query = fvlm_loss_query;
  static constexpr std::string_view family = "fvlm.loss/1";
  static int32_t device(const Query& query) { return query.device.type; }
  static std::string subject(const Query&) { return "loss"; }
  static std::string shape(const Query& query);
  // A field that the query needs and a plugin of an older ABI would ignore; empty where there is none. Such a plugin is
  // not asked.
  static std::string unknown_field(const fvlm_loss_v1& table, const Query& query) {
    return query.softcap != 0 && !(table.features & FVLM_LOSS_SOFTCAP) ? "softcap" : "";
  }
};

template <>
struct KindOf<fvlm_kernels_v1> {
  using Query = fvlm_kernels_query;
  static constexpr std::string_view family = "fvlm.kernels/1";
  static int32_t device(const Query& query) { return query.device.type; }
  static std::string subject(const Query& query) { return "kernels " + operation_name(query.op); }
  static std::string shape(const Query& query);
};

template <>
struct KindOf<fvlm_optimizer_v1> {
  using Query = fvlm_optimizer_query;
  static constexpr std::string_view family = "fvlm.optimizer/1";
  static int32_t device(const Query& query) { return query.device.type; }
  static std::string subject(const Query&) { return "optimizer"; }
};

template <>
struct KindOf<fvlm_quantizer_v1> {
  using Query = fvlm_quantizer_query;
  static constexpr std::string_view family = "fvlm.quantizer/1";
  static int32_t device(const Query& query) { return query.device.type; }
  static std::string subject(const Query&) { return "quantizer"; }
  static std::string unknown_field(const fvlm_quantizer_v1& table, const Query& query) {
    return query.options & ~table.features ? "options" : "";
  }
};

template <>
struct KindOf<fvlm_packer_v1> {
  using Query = fvlm_packer_query;
  static constexpr std::string_view family = "fvlm.packer/1";
  static int32_t device(const Query&) { return FVLM_CPU; }
  static std::string subject(const Query&) { return "packer"; }
};

template <>
struct KindOf<fvlm_video_v1> {
  using Query = fvlm_video_query;
  static constexpr std::string_view family = "fvlm.video/1";
  static int32_t device(const Query&) { return FVLM_CPU; }
  static std::string subject(const Query& query) { return std::string("video ") + query.format; }
};

} // namespace fvlm
