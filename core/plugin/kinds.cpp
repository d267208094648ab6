#include "plugin/kinds.h"

#include "plugin/table_slot.h"
#include "plugin/untrusted.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>

namespace fvlm {
namespace {

constexpr fvlm_dtype float32{FVLM_FLOAT, 32, 1};

template <class Query>
Query sized() {
  Query query{};
  query.struct_size = sizeof query;
  return query;
}

template <class Table, class Query>
SupportAnswer ask(const Table& table, const Query& query) {
  return ask_supports([&](fvlm_support* support) { table.supports(&query, support); });
}

std::string paged_attention_defect(const fvlm_attention_v1& table, fvlm_device device) {
  const bool given[] = {table.supports_paged != nullptr, table.requirements_paged != nullptr,
                        table.forward_paged != nullptr};
  if (given[0] != given[1] || given[0] != given[2])
    return "it has some of supports_paged, requirements_paged and forward_paged, but not all";
  if (!given[0]) return "";
  auto query = sized<fvlm_paged_attention_query>();
  query.device = device;
  query.dtype = float32;
  query.heads_q = 2;
  query.heads_kv = 1;
  query.head_dim = 64;
  query.page_rows = 16;
  query.scale = 0.125F;
  query.rows = query.sequences = 4;
  query.pages = 16;
  query.max_pages = 4;
  return ask_supports([&](fvlm_support* support) { table.supports_paged(&query, support); }).defect;
}

std::string attention_defect(const void* pointer, const KindName&, fvlm_device device) {
  auto query = sized<fvlm_attention_query>();
  query.causal = 1;
  query.device = device;
  query.dtype = float32;
  query.heads_q = 2;
  query.heads_kv = 1;
  query.head_dim = 64;
  query.max_seqlen_q = query.max_seqlen_kv = 64;
  query.tokens_q = query.tokens_kv = 128;
  query.segments = 4;
  query.scale = 0.125F;
  query.rope_theta = 10000;
  query.needs_backward = 1;
  const auto& table = *static_cast<const fvlm_attention_v1*>(pointer);
  const std::string defect = ask(table, query).defect;
  return defect.empty() ? paged_attention_defect(table, device) : defect;
}

std::string loss_defect(const void* pointer, const KindName&, fvlm_device device) {
  auto query = sized<fvlm_loss_query>();
  query.needs_d_hidden = query.needs_d_weight = 1;
  query.device = device;
  query.dtype = query.gradient_dtype = float32;
  query.tokens = 16;
  query.width = 32;
  query.vocab = 64;
  return ask(*static_cast<const fvlm_loss_v1*>(pointer), query).defect;
}

std::string kernels_defect(const void* pointer, const KindName&, fvlm_device device) {
  for (const TableOperation& operation : kernel_operations()) {
    auto query = sized<fvlm_kernels_query>();
    query.op = operation.op;
    query.device = device;
    query.dtype = query.gradient_dtype = float32;
    query.options = FVLM_WITH_BACKWARD;
    query.rows = 16;
    query.width = query.inner = 128;
    query.heads = 2;
    query.head_dim = query.rotary_dim = 64;
    query.epsilon = 1e-5F;
    query.rope_theta = 10000;
    query.segments = query.key_heads = 1;
    query.max_seqlen = 16;
    query.taps = 4;
    query.key_dim = 64;
    auto answer = ask(*static_cast<const fvlm_kernels_v1*>(pointer), query);
    if (!answer.defect.empty()) return answer.defect;
    if (answer.score > 0 && !operation.slots[0].is_set(pointer))
      return fmt::format("supports() accepts {}, but {} is NULL", operation.name, operation.slots[0].name);
  }
  return "";
}

std::string hyperparameter_defect(const fvlm_optimizer_v1& table) {
  constexpr int32_t max_count = 64;
  int32_t count = table.hyperparameter_count;
  if (count < 1 || count > max_count)
    return fmt::format("hyperparameter_count is {}; expected 1 to {}", count, max_count);
  if (!table.hyperparameters) return fmt::format("hyperparameters is NULL while hyperparameter_count is {}", count);
  for (int32_t i = 0; i < count; ++i) {
    const fvlm_hyperparameter& one = table.hyperparameters[i];
    auto name = bounded_string(one.name, 64);
    if (!name || name->empty()) return fmt::format("hyperparameters[{}] has no name", i);
    if (i == 0 && *name != "lr") return fmt::format("the first hyperparameter is '{}', not 'lr'", printable(*name));
    if (!(one.least <= one.fallback && one.fallback <= one.most))
      return fmt::format("the default {} of hyperparameter '{}' is out of its bounds {} to {}", one.fallback,
                         printable(*name), one.least, one.most);
  }
  return "";
}

// states() gets memory for more than FVLM_MAX_STATES, so that a plugin that writes too many does no harm.
std::string states_defect(const fvlm_optimizer_v1& table, const fvlm_optimizer_query& query) {
  std::array<fvlm_optimizer_state, 16 * FVLM_MAX_STATES> states{};
  int32_t count = table.states(&query, states.data());
  if (count < 0 || count > FVLM_MAX_STATES)
    return fmt::format("states() returned {}; expected 0 to {}", count, FVLM_MAX_STATES);
  for (int32_t i = 0; i < count; ++i)
    if (auto name = bounded_string(states[static_cast<size_t>(i)].name, 64); !name || name->empty())
      return fmt::format("states() left states[{}] without a name", i);
  return "";
}

std::string optimizer_defect(const void* pointer, const KindName& kind, fvlm_device device) {
  const auto& table = *static_cast<const fvlm_optimizer_v1*>(pointer);
  auto algorithm = bounded_string(table.algorithm, 64);
  if (!algorithm) return "algorithm is NULL";
  if (*algorithm != kind.variant)
    return fmt::format("its algorithm is '{}', not the kind's '{}'", printable(*algorithm), kind.variant);
  if (auto defect = hyperparameter_defect(table); !defect.empty()) return defect;
  fvlm_optimizer_segment matrix{0, 8, 8, 0};
  auto query = sized<fvlm_optimizer_query>();
  query.device = device;
  query.gradient_dtype = query.parameter_dtype = query.state_dtype = float32;
  query.elements = 64;
  query.segment_count = query.group_count = 1;
  query.segments = &matrix;
  auto answer = ask(table, query);
  if (!answer.defect.empty() || answer.score == 0) return answer.defect;
  try {
    return states_defect(table, query);
  } catch (...) {
    return "states() threw " + current_exception_text();
  }
}

std::string quantizer_defect(const void* pointer, const KindName& kind, fvlm_device device) {
  const auto& table = *static_cast<const fvlm_quantizer_v1*>(pointer);
  auto scheme = bounded_string(table.scheme, 64);
  if (!scheme) return "scheme is NULL";
  if (*scheme != kind.variant)
    return fmt::format("its scheme is '{}', not the kind's '{}'", printable(*scheme), kind.variant);
  if (table.bits < 1 || table.bits > 16) return fmt::format("bits is {}; expected 1 to 16", table.bits);
  auto query = sized<fvlm_quantizer_query>();
  query.device = device;
  query.dtype = float32;
  query.rows = query.cols = 64;
  query.tokens = 16;
  return ask(table, query).defect;
}

std::string packer_defect(const void* pointer, const KindName&, fvlm_device) {
  int64_t capacity = 128;
  auto query = sized<fvlm_packer_query>();
  query.dimensions = 1;
  query.capacity = &capacity;
  return ask(*static_cast<const fvlm_packer_v1*>(pointer), query).defect;
}

std::string video_defect(const void* pointer, const KindName&, fvlm_device) {
  auto query = sized<fvlm_video_query>();
  query.format = "mp4";
  query.most_pixels = 1 << 20;
  return ask(*static_cast<const fvlm_video_v1*>(pointer), query).defect;
}

using Defect = decltype(Family::defect);

// A family whose table has not grown since ABI minor 0, see grown(). `functions`: those that are required, besides
// create and destroy.
template <class Table>
Family family(std::string_view name, std::string_view label, std::vector<TableSlot> functions, Defect defect,
              std::vector<TableOperation> operations = {}) {
  functions.insert(functions.begin(),
                   {{"create", offsetof(Table, base.create)}, {"destroy", offsetof(Table, base.destroy)}});
  return {.name = name,
          .label = label,
          .has_variants = false,
          .min_size = sizeof(Table),
          .size = sizeof(Table),
          .required = std::move(functions),
          .operations = std::move(operations),
          .defect = defect};
}

// A family whose table was shorter in ABI minor 0.
Family grown(size_t min_size, Family made) {
  made.min_size = min_size;
  return made;
}

Family with_variants(Family made) {
  made.has_variants = true;
  return made;
}

std::vector<Family> make_families() {
  using Attention = fvlm_attention_v1;
  using Loss = fvlm_loss_v1;
  using Kernels = fvlm_kernels_v1;
  using Optimizer = fvlm_optimizer_v1;
  using Quantizer = fvlm_quantizer_v1;
  using Packer = fvlm_packer_v1;
  using Video = fvlm_video_v1;
  return {
      grown(offsetof(Attention, supports_paged),
            family<Attention>(FVLM_ATTENTION_KIND, "attention",
                              {FVLM_SLOT(Attention, supports), FVLM_SLOT(Attention, requirements),
                               FVLM_SLOT(Attention, forward), FVLM_SLOT(Attention, backward)},
                              attention_defect)),
      grown(offsetof(Loss, features), family<Loss>(FVLM_LOSS_KIND, "loss",
                                                   {FVLM_SLOT(Loss, supports), FVLM_SLOT(Loss, requirements),
                                                    FVLM_SLOT(Loss, forward), FVLM_SLOT(Loss, backward)},
                                                   loss_defect)),
      grown(offsetof(Kernels, short_convolution_forward),
            family<Kernels>(FVLM_KERNELS_KIND, "kernels",
                            {FVLM_SLOT(Kernels, supports), FVLM_SLOT(Kernels, requirements)}, kernels_defect,
                            kernel_operations())),
      with_variants(family<Optimizer>("fvlm.optimizer/1", "optimizer",
                                      {FVLM_SLOT(Optimizer, supports), FVLM_SLOT(Optimizer, states),
                                       FVLM_SLOT(Optimizer, requirements), FVLM_SLOT(Optimizer, step)},
                                      optimizer_defect)),
      grown(offsetof(Quantizer, features),
            with_variants(family<Quantizer>(
                "fvlm.quantizer/1", "quantizer",
                {FVLM_SLOT(Quantizer, supports), FVLM_SLOT(Quantizer, requirements), FVLM_SLOT(Quantizer, pack),
                 FVLM_SLOT(Quantizer, unpack), FVLM_SLOT(Quantizer, linear), FVLM_SLOT(Quantizer, linear_gradient),
                 FVLM_SLOT(Quantizer, fake_quantize_forward), FVLM_SLOT(Quantizer, fake_quantize_backward)},
                quantizer_defect))),
      family<Packer>(FVLM_PACKER_KIND, "packer", {FVLM_SLOT(Packer, supports), FVLM_SLOT(Packer, pack)}, packer_defect),
      family<Video>(FVLM_VIDEO_KIND, "video",
                    {FVLM_SLOT(Video, supports), FVLM_SLOT(Video, probe), FVLM_SLOT(Video, decode)}, video_defect)};
}

bool is_word(std::string_view text, std::string_view more) {
  if (text.empty() || text.size() > 64) return false;
  for (char c : text)
    if (!(c >= 'a' && c <= 'z') && !(c >= '0' && c <= '9') && more.find(c) == std::string_view::npos) return false;
  return true;
}

} // namespace

std::optional<KindName> parse_kind(std::string_view text) {
  KindName name;
  size_t colon = text.find(':');
  std::string_view family = text.substr(0, colon);
  if (colon != std::string_view::npos) {
    if (!is_word(text.substr(colon + 1), "._-")) return std::nullopt;
    name.variant = text.substr(colon + 1);
  }
  size_t slash = family.find('/');
  if (slash == std::string_view::npos || !is_word(family.substr(0, slash), "._-")) return std::nullopt;
  std::string_view revision = family.substr(slash + 1);
  if (revision.empty() || revision.size() > 4 || revision.find_first_not_of("0123456789") != std::string_view::npos)
    return std::nullopt;
  name.family = family;
  return name;
}

std::vector<std::string> kinds_to_ask(std::string_view library) {
  std::vector<std::string> kinds{"fvlm.attention/1",      "fvlm.loss/1",    "fvlm.optimizer/1:adamw",
                                 "fvlm.optimizer/1:muon", "fvlm.packer/1",  "fvlm.quantizer/1:int8",
                                 "fvlm.quantizer/1:int4", "fvlm.kernels/1", "fvlm.video/1"};
  constexpr size_t longest = 80;
  for (const Family& family : known_families()) {
    if (!family.has_variants) continue;
    const std::string begin = std::string(family.name) + ":";
    for (size_t at = library.find(begin); at != std::string_view::npos; at = library.find(begin, at + 1)) {
      const std::string_view rest = library.substr(at, longest);
      const auto kind = std::string(rest.substr(0, rest.find('\0')));
      if (kind.size() < longest && parse_kind(kind) && std::ranges::find(kinds, kind) == kinds.end())
        kinds.push_back(kind);
    }
  }
  return kinds;
}

std::span<const Family> known_families() {
  static const std::vector<Family> families = make_families();
  return families;
}

const Family* find_family(std::string_view name) {
  for (const Family& family : known_families())
    if (family.name == name) return &family;
  return nullptr;
}

bool TableSlot::is_set(const void* table) const {
  void* function = nullptr;
  std::memcpy(&function, static_cast<const char*>(table) + offset, sizeof function);
  return function != nullptr;
}

bool TableOperation::is_implemented(const void* table) const {
  return std::ranges::all_of(slots, [&](const TableSlot& slot) { return slot.is_set(table); });
}

std::string KindOf<fvlm_attention_v1>::shape(const Query& query) {
  return fmt::format("{} x {} rows, {} segments of {}{} x {}, {} / {} heads of {}{}{}{}", query.tokens_q,
                     query.tokens_kv, query.segments, query.even ? "" : "at most ", query.max_seqlen_q,
                     query.max_seqlen_kv, query.heads_q, query.heads_kv, query.head_dim, query.causal ? ", causal" : "",
                     query.window ? fmt::format(", windows of {}", query.window) : "",
                     query.partial          ? ", of a part of the keys, with backward"
                     : query.guests         ? ", with backward and deferred queries"
                     : query.queries_alone  ? ", with backward of queries only"
                     : query.needs_backward ? ", with backward"
                                            : "");
}

std::string KindOf<PagedAttentionTable>::shape(const Query& query) {
  return fmt::format("{} rows, {} sequences of at most {} of {} pages of {}, {} / {} heads of {}{}", query.rows,
                     query.sequences, query.max_pages, query.pages, query.page_rows, query.heads_q, query.heads_kv,
                     query.head_dim, query.window ? fmt::format(", windows of {}", query.window) : "");
}

std::string KindOf<fvlm_loss_v1>::shape(const Query& query) {
  return fmt::format("{} rows of {}, vocabulary of {}{}{}", query.tokens, query.width, query.vocab,
                     query.softcap != 0 ? fmt::format(", softcap {}", query.softcap) : "",
                     query.needs_d_hidden || query.needs_d_weight ? ", with backward" : "");
}

} // namespace fvlm
