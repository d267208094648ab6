// Selection of a plugin for each problem, and the caches of prepared operations.
#include "ops/operations.h"

#include "base/log.h"
#include "ops/dry_run.h"

#include <bit>

namespace fvlm::ops {

Operations::Operations(Registry& registry, OperationsOptions options)
    : registry_(registry), options_(std::move(options)), timing_cache_(options_.device) {}

template <class Table, class Key, class Op>
bool Operations::drop(std::map<Key, Chosen<Op>>& all, const UnsupportedCall& refused) {
  for (auto& [key, chosen] : all) {
    const Prepared<Table>* prepared = chosen.op.get();
    if (!prepared || prepared != refused.prepared) continue;
    chosen.refused[refused.plugin] = "refused a call: " + refused.words;
    dropped_.push_back(std::move(chosen.op));
    return true;
  }
  return false;
}

bool Operations::drop(const UnsupportedCall& refused) {
  return drop<fvlm_kernels_v1>(kernels_, refused) || drop<fvlm_attention_v1>(attentions_, refused) ||
         drop<PagedAttentionTable>(paged_attentions_, refused) || drop<fvlm_loss_v1>(losses_, refused) ||
         drop<fvlm_quantizer_v1>(quantizers_, refused);
}

template <class Table>
Backend<Table> Operations::backend_for(BackendPreference preference, const typename KindOf<Table>::Query& query,
                                       const std::map<std::string, std::string>& refused) {
  preference.without = refused;
  const uint32_t flags = options_.deterministic ? uint32_t{FVLM_DETERMINISTIC} : 0;
  std::function<Measurement(const Candidate<Table>&)> measure;
  if (!is_dry_run(options_.device))
    measure = [&](const Candidate<Table>& candidate) { return timing_cache_.of(candidate, query, flags); };
  const Choice<Table> choice = select<Table>(registry_, preference, query, {}, measure);
  for (const auto& [plugin, words] : refused)
    if (const auto line = fmt::format("{}: '{}' {}, although it had claimed to support it ({}); falling back to '{}'",
                                      choice.report.subject, plugin, words, choice.report.shape, choice.plugin->name());
        registry_.is_first_occurrence(line))
      log_warning("{}", line);
  choices_.push_back(choice.report);
  queries_.emplace_back(query);
  auto& backend = backends_[{choice.plugin->name(), typeid(Table), ""}];
  if (!backend) {
    const auto made = std::make_shared<Backend<Table>>(choice, options_.device);
    made->state().flags = flags;
    backend = made;
  }
  return *static_cast<const Backend<Table>*>(backend.get());
}

fvlm_kernels_query Operations::kernels_query(int32_t op, uint32_t options, int64_t rows, int64_t width) const {
  fvlm_kernels_query query{};
  query.struct_size = sizeof query;
  query.op = op;
  query.device = abi_device(options_.device);
  query.dtype = abi_dtype(options_.dtype);
  query.gradient_dtype = abi_dtype(options_.gradient_dtype);
  query.options = options;
  query.rows = rows;
  query.width = width;
  return query;
}

// Asks for column sums (fused bias gradients) where the selected plugin has them. Selection itself does not consider
// them.
static fvlm_kernels_query with_column_sums(const Backend<fvlm_kernels_v1>& backend, const fvlm_kernels_query& query) {
  if (!(query.options & FVLM_WITH_BACKWARD) || !(find_operation(query.op)->options & FVLM_WITH_COLUMN_SUMS))
    return query;
  fvlm_kernels_query extended = query;
  extended.options |= FVLM_WITH_COLUMN_SUMS;
  const auto answer = ask_supports([&](fvlm_support* support) { backend.table().supports(&extended, support); });
  return answer.score > 0 ? extended : query;
}

// Creates an operation. A plugin that supports() a problem may still refuse it in create(), requirements() or
// prepare(); the next preference then replaces it.
template <class Op, class Make>
static void make_op(std::shared_ptr<const Op>& op, std::map<std::string, std::string>& refused, const Make& make) {
  while (!op) {
    try {
      op = make();
    } catch (const UnsupportedCall& call) {
      if (!refused.emplace(call.plugin, "refused a call: " + call.words).second) throw;
    }
  }
}

Operations::KernelKey Operations::key_of(const fvlm_kernels_query& query) {
  return {query.op,         query.options,    query.rows,       query.width,
          query.inner,      query.pairs,      query.heads,      query.head_dim,
          query.rotary_dim, query.epsilon,    query.rope_theta, query.gradient_dtype.bits,
          query.segments,   query.max_seqlen, query.taps,       query.key_heads,
          query.key_dim,    query.experts,    query.chosen,     query.router_scale};
}

template <class Op>
const Op& Operations::kernel(fvlm_kernels_query query) {
  auto& [op, refused] = kernels_[key_of(query)];
  make_op(op, refused, [&, &known = refused] {
    const auto own = options_.operations.find(operation_name(query.op));
    BackendPreference preference = own == options_.operations.end() ? options_.kernels : own->second;
    // Plugins have them for some sizes alone, see few_rows_experts().
    if (query.op == FVLM_OP_EXPERTS && !preference.names.empty()) preference.names.emplace_back("reference");
    const auto backend = backend_for<fvlm_kernels_v1>(preference, query, known);
    return std::make_shared<const Op>(backend, with_column_sums(backend, query));
  });
  return static_cast<const Op&>(*op);
}

template <class Op>
const Op* Operations::extended(const Op& plain, const fvlm_kernels_query& query) {
  auto& [op, refused] = kernels_[key_of(query)];
  if (op) return static_cast<const Op*>(op.get());
  if (!refused.empty()) return nullptr;
  const auto answer = ask_supports([&](fvlm_support* support) { plain.backend().table().supports(&query, support); });
  if (answer.score <= 0) {
    refused.emplace(plain.backend().plugin(), answer.reason);
    return nullptr;
  }
  const auto made = std::make_shared<const Op>(plain.backend(), query);
  op = made;
  return made.get();
}

template <class Op>
const Op* Operations::with_options(const Op& plain, uint32_t options) {
  fvlm_kernels_query query = plain.query();
  query.options |= options;
  return extended(plain, query);
}

template const Linear* Operations::extended<Linear>(const Linear&, const fvlm_kernels_query&);
template const Linear* Operations::with_options<Linear>(const Linear&, uint32_t);
template const SwiGlu* Operations::with_options<SwiGlu>(const SwiGlu&, uint32_t);

template const Linear& Operations::kernel<Linear>(fvlm_kernels_query);
template const BiasGelu& Operations::kernel<BiasGelu>(fvlm_kernels_query);
template const Norm& Operations::kernel<Norm>(fvlm_kernels_query);
template const Rope& Operations::kernel<Rope>(fvlm_kernels_query);
template const SwiGlu& Operations::kernel<SwiGlu>(fvlm_kernels_query);
template const LayerScale& Operations::kernel<LayerScale>(fvlm_kernels_query);
template const FoldRowScale& Operations::kernel<FoldRowScale>(fvlm_kernels_query);
template const ShortConvolution& Operations::kernel<ShortConvolution>(fvlm_kernels_query);
template const GatedDeltaRule& Operations::kernel<GatedDeltaRule>(fvlm_kernels_query);
template const FewRowsExperts& Operations::kernel<FewRowsExperts>(fvlm_kernels_query);

// Selects without rotary embedding and deferred queries, so that the fastest attention does not lose to one that has
// them; then adds them where the selected plugin supports them.
const Attention& Operations::attention_for(fvlm_attention_query query) {
  const AttentionKey key{query.causal,         query.heads_q,       query.heads_kv,   query.head_dim,
                         query.max_seqlen_q,   query.max_seqlen_kv, query.rotary_dim, query.tokens_q,
                         query.tokens_kv,      query.segments,      query.scale,      query.rope_theta,
                         query.needs_backward, query.even,          query.guests,     query.queries_alone,
                         query.partial,        query.window};
  BackendPreference preference = options_.attention;
  if ((query.partial || query.window) && !preference.names.empty())
    preference.names.emplace_back("auto"); // as for pages, below
  auto& [op, refused] = attentions_[key];
  make_op(op, refused, [&, &known = refused] {
    fvlm_attention_query plain = query;
    plain.rotary_dim = plain.guests = plain.queries_alone = 0;
    const auto backend = backend_for<fvlm_attention_v1>(preference, plain, known);
    const auto answer = ask_supports([&](fvlm_support* support) { backend.table().supports(&query, support); });
    return std::make_shared<const Attention>(backend, answer.score > 0 ? query : plain);
  });
  return *op;
}

// A preference was written with training in mind: where none of its plugins has attention over pages, another one does.
// As above, the plugin is selected without what it may add to the attention.
const PagedAttention& Operations::paged_attention_for(const fvlm_paged_attention_query& query) {
  BackendPreference preference = options_.attention;
  if (!preference.names.empty()) preference.names.emplace_back("auto");
  const PagedAttentionKey key{
      query.heads_q,   query.heads_kv,  query.head_dim,   query.page_rows, query.rows,       query.pages,
      query.sequences, query.max_pages, query.scale,      query.appends,   query.rotary_dim, query.has_frequencies,
      query.inverse,   query.qk_norm,   query.rope_theta, query.epsilon,   query.window};
  auto& [op, refused] = paged_attentions_[key];
  make_op(op, refused, [&, &known = refused] {
    fvlm_paged_attention_query plain = query;
    plain.appends = plain.rotary_dim = plain.has_frequencies = plain.inverse = plain.qk_norm = 0;
    const auto backend = backend_for<PagedAttentionTable>(preference, plain, known);
    if (!query.appends || !(backend.table().features & FVLM_ATTENTION_APPENDS))
      return std::make_shared<const PagedAttention>(backend, plain);
    const auto answer = ask_supports([&](fvlm_support* support) { backend.table().supports(&query, support); });
    return std::make_shared<const PagedAttention>(backend, answer.score > 0 ? query : plain);
  });
  return *op;
}

// Prepared for the next power of two of tokens, since any smaller number of them is valid: generation comes by many.
const Quantizer& Operations::quantizer_for(const Weight& weight, int64_t tokens) {
  fvlm_quantizer_query query{};
  query.struct_size = sizeof query;
  query.device = abi_device(options_.device);
  query.dtype = abi_dtype(options_.dtype);
  query.rows = weight.value().size(0);
  query.cols = weight.value().size(1);
  query.tokens = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(tokens)));
  auto& [op, refused] = quantizers_[{weight.scheme(), query.rows, query.cols, query.tokens, 0, 0.0f}];
  make_op(op, refused, [&, &known = refused] {
    BackendPreference preference = options_.quantizer;
    preference.without = known;
    const auto choice = select<fvlm_quantizer_v1>(registry_, preference, query, weight.scheme());
    auto& backend = backends_[{choice.plugin->name(), typeid(fvlm_quantizer_v1), weight.scheme()}];
    if (!backend) backend = std::make_shared<Backend<fvlm_quantizer_v1>>(choice, options_.device);
    return std::make_shared<const Quantizer>(*static_cast<const Backend<fvlm_quantizer_v1>*>(backend.get()), query);
  });
  return *op;
}

at::Tensor Operations::numbers(const Weight& weight) {
  return weight.is_quantized() ? quantizer_for(weight, 0).unpack(weight.packed()) : weight.value();
}

const Quantizer* Operations::extended_quantizer_for(const Weight& weight, int64_t tokens, uint32_t options,
                                                    double epsilon) {
  const Quantizer& plain = quantizer_for(weight, tokens);
  fvlm_quantizer_query query = plain.query();
  query.options = options;
  query.epsilon = static_cast<float>(epsilon);
  auto& [op, refused] =
      quantizers_[{weight.scheme(), query.rows, query.cols, query.tokens, query.options, query.epsilon}];
  if (op || !refused.empty()) return op.get();
  const fvlm_quantizer_v1& table = plain.backend().table();
  if (!(options & ~table.features) &&
      ask_supports([&](fvlm_support* support) { table.supports(&query, support); }).score > 0)
    op = std::make_shared<const Quantizer>(plain.backend(), query);
  else
    refused.emplace(plain.backend().plugin(), "does without options of a linear");
  return op.get();
}

const Loss& Operations::loss_for(const Value& hidden, const Weight& head, bool records, double softcap) {
  fvlm_loss_query query{};
  query.struct_size = sizeof query;
  query.needs_d_hidden = records && hidden.requires_grad();
  query.needs_d_weight = records && head.requires_grad();
  query.device = abi_device(options_.device);
  query.dtype = abi_dtype(options_.dtype);
  query.gradient_dtype = abi_dtype(options_.gradient_dtype);
  query.tokens = hidden.data.size(0);
  query.width = head.value().size(1);
  query.vocab = head.value().size(0);
  query.softcap = static_cast<float>(softcap);
  const LossKey key{query.needs_d_hidden, query.needs_d_weight, query.tokens, query.width, query.vocab, query.softcap};
  auto& [op, refused] = losses_[key];
  make_op(op, refused, [&, &known = refused] {
    return std::make_shared<const Loss>(backend_for<fvlm_loss_v1>(options_.loss, query, known), query);
  });
  return *op;
}

} // namespace fvlm::ops
