#include "bench/op.h"

#include "base/error.h"
#include "base/text.h"
#include "bench/job.h"
#include "bench/peer.h"
#include "device/runtime.h"
#include "model/execution.h"
#include "ops/host_memory.h"
#include "ops/measure.h"
#include "plugin/selection.h"

#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <variant>

namespace fvlm::bench {
namespace {

constexpr const char* optimizer_algorithm = "adamw";

// A query, with the memory that it points to.
struct OpQuery {
  ops::CalledQuery query;
  std::shared_ptr<const fvlm_optimizer_segment> whole;
};

template <class Query>
struct TableOf;
template <>
struct TableOf<fvlm_attention_query> {
  using Table = fvlm_attention_v1;
  static std::string operation(const fvlm_attention_query& query) {
    return query.causal ? "causal-attention" : "attention";
  }
};
template <>
struct TableOf<fvlm_paged_attention_query> {
  using Table = PagedAttentionTable;
  static std::string operation(const fvlm_paged_attention_query&) { return "paged-attention"; }
};
template <>
struct TableOf<fvlm_loss_query> {
  using Table = fvlm_loss_v1;
  static std::string operation(const fvlm_loss_query&) { return "loss"; }
};
template <>
struct TableOf<fvlm_kernels_query> {
  using Table = fvlm_kernels_v1;
  static std::string operation(const fvlm_kernels_query& query) { return operation_name(query.op); }
};
template <>
struct TableOf<fvlm_optimizer_query> {
  using Table = fvlm_optimizer_v1;
  static std::string operation(const fvlm_optimizer_query&) { return "optimizer"; }
};

// The text form of an operation's shape, and how its sizes fill a query.
using Sizes = std::vector<int64_t>;
struct Form {
  std::string_view operation, sizes;
  std::function<void(OpQuery& op_query, const Sizes& sizes)> fill;
};

void fill_rows(const TableOperation& operation, OpQuery& op_query, const Sizes& sizes) {
  fvlm_kernels_query query{};
  query.op = operation.op;
  query.options = FVLM_WITH_BACKWARD;
  query.rows = sizes[0];
  query.width = sizes.back();
  if (operation.has_inner) query.inner = sizes[1];
  if (operation.has_epsilon) query.epsilon = 1e-6f;
  if (operation.op == FVLM_OP_BIAS_GELU) query.options |= FVLM_WITH_BIAS;
  if (operation.op == FVLM_OP_ROPE) {
    query.heads = static_cast<int32_t>(sizes[1]);
    query.head_dim = query.rotary_dim = static_cast<int32_t>(sizes[2]);
    query.width = sizes[1] * sizes[2];
    query.rope_theta = 10000;
  }
  // Sequences of 1,024 rows.
  if (operation.options & FVLM_WITH_STATES) {
    query.segments = std::max<int64_t>(1, query.rows / 1024);
    query.max_seqlen = static_cast<int32_t>((query.rows + query.segments - 1) / query.segments);
  }
  if (!operation.has_backward) query.options = 0;
  if (operation.op == FVLM_OP_EXPERTS) {
    query.options = FVLM_NORMALIZED_ROUTER;
    query.width = sizes[2];
    query.experts = static_cast<int32_t>(sizes[3]), query.chosen = static_cast<int32_t>(sizes[4]);
    query.router_scale = 1;
    if (sizes[5] != 16 && sizes[5] != 8 && sizes[5] != 4)
      throw Error(ErrorKind::usage, "experts of {} bits: expected 16, 8 or 4", sizes[5]);
    if (sizes[5] < 16) query.options |= sizes[5] == 8 ? FVLM_INT8_WEIGHTS : FVLM_INT4_WEIGHTS;
  }
  if (operation.op == FVLM_OP_SHORT_CONVOLUTION) query.taps = 4;
  if (operation.op == FVLM_OP_DELTA_RULE) {
    query.heads = query.key_heads = static_cast<int32_t>(sizes[1]);
    query.head_dim = query.key_dim = static_cast<int32_t>(sizes[2]);
    query.width = sizes[1] * sizes[2];
  }
  op_query.query = query;
}

template <bool causal>
void fill_attention(OpQuery& op_query, const Sizes& sizes) {
  fvlm_attention_query query{};
  query.causal = causal;
  query.segments = sizes[0];
  query.max_seqlen_q = query.max_seqlen_kv = static_cast<int32_t>(sizes[1]);
  query.tokens_q = query.tokens_kv = sizes[0] * sizes[1];
  query.heads_q = query.heads_kv = static_cast<int32_t>(sizes[2]);
  query.head_dim = static_cast<int32_t>(sizes[3]);
  query.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(sizes[3])));
  query.needs_backward = query.even = 1;
  op_query.query = query;
}

// A row for each sequence, whose pages have room for as many keys again.
void fill_paged_attention(OpQuery& op_query, const Sizes& sizes) {
  fvlm_paged_attention_query query{};
  query.page_rows = 16;
  const int64_t pages = (sizes[1] + query.page_rows - 1) / query.page_rows;
  query.rows = query.sequences = sizes[0];
  query.pages = sizes[0] * pages;
  query.max_pages = 2 * pages;
  query.heads_q = static_cast<int32_t>(sizes[2]);
  query.heads_kv = static_cast<int32_t>(sizes[3]);
  query.head_dim = static_cast<int32_t>(sizes[4]);
  query.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(sizes[4])));
  op_query.query = query;
}

void fill_loss(OpQuery& op_query, const Sizes& sizes) {
  fvlm_loss_query query{};
  query.needs_d_hidden = query.needs_d_weight = 1;
  query.tokens = sizes[0];
  query.width = sizes[1];
  query.vocab = sizes[2];
  op_query.query = query;
}

void fill_optimizer(OpQuery& op_query, const Sizes& sizes) {
  op_query.whole = std::make_shared<const fvlm_optimizer_segment>(fvlm_optimizer_segment{0, 1, sizes[0], 0});
  fvlm_optimizer_query query{};
  query.elements = sizes[0];
  query.segment_count = query.group_count = 1;
  query.segments = op_query.whole.get();
  op_query.query = query;
}

const std::vector<Form>& forms() {
  static const std::vector<Form> all = [] {
    std::vector<Form> forms{{"attention", "SEGMENTSxLENGTHxHEADSxHEAD_DIM", fill_attention<false>},
                            {"causal-attention", "SEGMENTSxLENGTHxHEADSxHEAD_DIM", fill_attention<true>},
                            {"paged-attention", "ROWSxKEYSxHEADSxKEY_HEADSxHEAD_DIM", fill_paged_attention},
                            {"loss", "ROWSxWIDTHxVOCABULARY", fill_loss},
                            {"optimizer", "PARAMETERS", fill_optimizer}};
    for (const TableOperation& operation : kernel_operations())
      forms.push_back({operation.name, operation.sizes, std::bind_front(fill_rows, std::cref(operation))});
    return forms;
  }();
  return all;
}

const Form& form_named(const std::string& operation) {
  std::vector<std::string> names;
  for (const Form& form : forms()) {
    if (operation == form.operation) return form;
    names.emplace_back(form.operation);
  }
  const auto near = nearest(operation, names);
  throw Error(ErrorKind::usage, "there is no operation '{}'", operation)
      .advise(near ? fmt::format("did you mean '{}'?", *near) : "there are " + join(names, ", "));
}

// "linear:8704x576x1536"
OpQuery parse_shape(const std::string& name) {
  const auto parts = split(name, ':');
  const Form& form = form_named(parts.front());
  const auto numbers = parts.size() == 2 ? split(parts[1], 'x') : std::vector<std::string>();
  Sizes sizes;
  for (const std::string& text : numbers) {
    int64_t size = 0;
    const auto end = std::from_chars(text.data(), text.data() + text.size(), size);
    if (end.ec == std::errc() && end.ptr == text.data() + text.size() && size > 0) sizes.push_back(size);
  }
  if (sizes.size() != split(std::string(form.sizes), 'x').size() || sizes.size() != numbers.size())
    throw Error(ErrorKind::usage, "'{}' is no shape", name).advise("{}:{}", form.operation, form.sizes);
  OpQuery op_query;
  form.fill(op_query, sizes);
  return op_query;
}

// The query as tools/oracle/time-op expects it.
struct Description {
  using Json = nlohmann::ordered_json;
  static Json base(const std::string& operation, fvlm_dtype dtype, bool backward) {
    return {{"operation", operation}, {"dtype", ops::dtype_name(dtype)}, {"backward", backward}};
  }
  Json operator()(const fvlm_attention_query& of) const {
    const ops::TypicalPacking filling = ops::typical_packing(of);
    Json description = base(TableOf<fvlm_attention_query>::operation(of), of.dtype, of.needs_backward);
    description.update({{"causal", of.causal != 0},
                        {"segments", filling.segments},
                        {"of_q", filling.of_q},
                        {"of_kv", filling.of_kv},
                        {"heads_q", of.heads_q},
                        {"heads_kv", of.heads_kv},
                        {"head_dim", of.head_dim}});
    return description;
  }
  Json operator()(const fvlm_paged_attention_query& of) const {
    Json description = base("paged-attention", of.dtype, false);
    description.update({{"rows", of.rows},
                        {"keys", ops::typical_keys(of)},
                        {"heads_q", of.heads_q},
                        {"heads_kv", of.heads_kv},
                        {"head_dim", of.head_dim}});
    return description;
  }
  Json operator()(const fvlm_loss_query& of) const {
    Json description = base("loss", of.dtype, of.needs_d_hidden || of.needs_d_weight);
    description.update({{"tokens", of.tokens}, {"width", of.width}, {"vocab", of.vocab}});
    return description;
  }
  Json operator()(const fvlm_kernels_query& of) const {
    Json description = base(operation_name(of.op), of.dtype, of.options & FVLM_WITH_BACKWARD);
    description.update({{"rows", of.rows},
                        {"width", of.width},
                        {"inner", of.inner},
                        {"heads", of.heads},
                        {"head_dim", of.head_dim},
                        {"theta", of.rope_theta},
                        {"epsilon", of.epsilon}});
    Json& with = description["with"] = Json::array();
    for (const auto& [bit, name] :
         {std::pair(FVLM_WITH_RESIDUAL, "residual"), {FVLM_WITH_BIAS, "bias"}, {FVLM_WITH_GELU, "gelu"}})
      if (of.options & bit) with.push_back(name);
    return description;
  }
  Json operator()(const fvlm_optimizer_query& of) const {
    Json description = base("optimizer", of.parameter_dtype, false);
    description["elements"] = of.elements;
    return description;
  }
};

class OpBench {
 public:
  OpBench(const OpRequest& request, Registry& registry, const Progress& progress)
      : request_(request), registry_(registry), progress_(progress), device_(model::device_named(request.device)),
        wish_(BackendPreference::of(request.kernels)), plan_(synthetic_plan(request, 0, request.frames, request.text)),
        dtype_(train::type_of(plan_.precision)) {
    if (!request.peer.empty()) peer_.emplace(request.peer, std::vector<std::string>{"--device", request.device});
  }

  OpReport measure() {
    OpReport report;
    report.on_gpu = device_.is_cuda();
    report.ceiling.raise(device_, dtype_);
    std::vector<OpQuery> all;
    std::vector<std::string> configurations;
    for (const std::string& name : request_.shapes) all.push_back(completed(parse_shape(name)));
    configurations.resize(all.size());
    for (const std::string& name : request_.configurations) {
      for (OpQuery& op_query : queries_of_step(configuration_named(name))) all.push_back(std::move(op_query));
      configurations.resize(all.size(), name);
    }
    for (size_t i = 0; i < all.size(); ++i)
      std::visit(
          [&](const auto& query) {
            const std::string operation = TableOf<std::decay_t<decltype(query)>>::operation(query);
            progress_(operation, static_cast<int64_t>(i), static_cast<int64_t>(all.size()));
            if (!request_.operations.empty() &&
                std::ranges::find(request_.operations, operation) == request_.operations.end())
              return;
            OpReport::Row row{configurations[i], operation, shape_of(all[i].query), {}, minimal_work(query), {}};
            time(query, row);
            if (peer_) ask_peer(all[i].query, row);
            report.rows.push_back(std::move(row));
          },
          all[i].query);
    report.ceiling.raise(device_, dtype_); // because other load may have slowed the first measurement
    return report;
  }

 private:
  // Completes a query with the values that sizes do not determine.
  OpQuery completed(OpQuery op_query) const {
    std::visit(
        [&](auto& query) {
          query.struct_size = sizeof query;
          query.device = ops::abi_device(device_);
          if constexpr (requires { query.dtype; }) query.dtype = ops::abi_dtype(dtype_);
          if constexpr (requires { query.gradient_dtype; })
            query.gradient_dtype =
                ops::abi_dtype(request_.gradients == plan::Gradients::bf16 ? at::kBFloat16 : at::kFloat);
          if constexpr (requires { query.state_dtype; }) {
            query.parameter_dtype = ops::abi_dtype(dtype_);
            query.state_dtype = ops::abi_dtype(request_.moments == plan::Moments::bf16 ? at::kBFloat16 : at::kFloat);
          }
        },
        op_query.query);
    return op_query;
  }

  // The distinct queries of a training step.
  std::vector<OpQuery> queries_of_step(const Configuration& configuration) {
    TrainingSetting setting = request_;
    setting.speed.graphs = false;
    const Job job = job_of(configuration, setting, request_.frames, request_.text, "", models_, registry_, device_);
    Training training(job.plan, registry_, device_, job.model, job.capacity, job.samples());
    train::GradientComputer& gradient_computer = training.gradient_computer();
    PartTimes untimed;
    const auto counts = train::counts_of(job.plan.stages.front(), job.packs.front().samples);
    gradient_computer.begin_step();
    gradient_computer.forward_backward(*gradient_computer.stage(job.packs.front().host, counts, 1), untimed);
    std::vector<OpQuery> all;
    for (const auto& query : training.operations().queries())
      std::visit([&](const auto& one) { all.push_back({one, {}}); }, query);
    OpQuery& optimizer = all.emplace_back();
    fill_optimizer(optimizer, {training.trained_model().parameters().trained().numel()});
    optimizer = completed(std::move(optimizer));
    return all;
  }

  template <class Query>
  void time(const Query& query, OpReport::Row& row) {
    using Table = typename TableOf<Query>::Table;
    const std::string variant = std::is_same_v<Query, fvlm_optimizer_query> ? optimizer_algorithm : "";
    const auto questions = selection_query<Table>(query, variant);
    const auto considered = answers(registry_, wish_, questions);
    const bool by_score = wish_.names.empty() || wish_.names.front() == "auto";
    int32_t best = 0;
    for (const CandidateAnswer& one : considered) {
      if (!one.fits) continue;
      if (one.score > best && (by_score || row.chosen.empty())) row.chosen = one.plugin;
      best = std::max(best, one.score);
      OpReport::Side& side = row.sides.emplace_back();
      side.plugin = one.plugin;
      side.reason = one.reason;
      const LoadedPlugin* plugin = registry_.load(one.plugin);
      try {
        time(ops::make_calls(Candidate<Table>{plugin, plugin->template table<Table>(variant)}, query, device_, flags()),
             side);
      } catch (const std::exception& error) {
        const std::string what = error.what();
        side.problem = what.substr(0, what.find('\n'));
      }
    }
  }

  void time(const ops::Calls& calls, OpReport::Side& side) const {
    side.captured = device::runtime() != nullptr;
    const auto seconds_of = [&](const std::function<void()>& call) {
      return seconds_of_call(call, device_, side.captured);
    };
    side.both = seconds_of(calls.both);
    if (!calls.backward) {
      side.forward = side.both;
      return;
    }
    side.forward = seconds_of(calls.forward);
    calls.forward(); // overwrites the results of the captured graph
    side.backward = seconds_of(calls.backward);
  }

  void ask_peer(const ops::CalledQuery& query, OpReport::Row& row) {
    const auto answer = peer_->ask(std::visit(Description(), query).dump());
    OpReport::Side& side = row.sides.emplace_back();
    side.plugin = "peer";
    side.captured = device_.is_cuda();
    try {
      side.reason = answer.value("what", request_.peer);
      side.problem = answer.value("problem", "");
      if (!side.problem.empty()) return;
      side.forward = answer.at("forward").get<double>();
      side.both = answer.value("both", *side.forward);
    } catch (const nlohmann::json::exception&) {
      peer_->fail_with_answer("seconds");
    }
  }

  uint32_t flags() const { return request_.deterministic ? uint32_t{FVLM_DETERMINISTIC} : 0; }

  const OpRequest& request_;
  Registry& registry_;
  const Progress& progress_;
  const at::Device device_;
  const BackendPreference wish_;
  const plan::Plan plan_;
  const at::ScalarType dtype_;
  SyntheticModels models_;
  std::optional<Peer> peer_;
};

nlohmann::ordered_json json_of(const MinimalWork& work) {
  return {{"bytes", work.bytes}, {"flops", work.flops}};
}

} // namespace

OpReport measure_ops(const OpRequest& request, Registry& registry, const Progress& progress) {
  if (request.frames < 0 || request.text < 2)
    throw Error(ErrorKind::usage, "expected --frames of 0 or more, --text of 2 or more");
  for (const std::string& operation : request.operations) (void)form_named(operation);
  for (const std::string& name : request.shapes) (void)parse_shape(name);
  for (const std::string& name : request.configurations) (void)configuration_named(name);
  const c10::InferenceMode without_autograd;
  ops::keep_freed_memory();
  return OpBench(request, registry, progress).measure();
}

std::string shapes_help() {
  std::vector<std::string> lines;
  for (const Form& form : forms()) lines.push_back(fmt::format("{}:{}", form.operation, form.sizes));
  return join(lines, "\n");
}

nlohmann::ordered_json OpReport::json() const {
  nlohmann::ordered_json document{{"ceiling", ceiling.json()}, {"rows", nlohmann::ordered_json::array()}};
  for (const Row& row : rows) {
    nlohmann::ordered_json one;
    if (!row.configuration.empty()) one["configuration"] = row.configuration;
    one["operation"] = row.operation;
    one["shape"] = row.shape;
    one["chosen"] = row.chosen;
    one["least"] = {{"forward", json_of(row.minimal.forward)}, {"backward", json_of(row.minimal.backward)}};
    for (const Side& side : row.sides) {
      nlohmann::ordered_json of{{"plugin", side.plugin}};
      const auto add = [&](const char* name, const std::optional<double>& seconds, const MinimalWork& work) {
        if (!seconds) return;
        of[name] = {{"seconds", *seconds},
                    {"bytes_per_second", work.bytes / *seconds},
                    {"flops_per_second", work.flops / *seconds},
                    {"of_ceiling", ceiling.share(work, *seconds)}};
      };
      add("forward", side.forward, row.minimal.forward);
      add("backward", side.backward, row.minimal.backward);
      add("both", side.both, row.minimal.forward + row.minimal.backward);
      of["recorded"] = side.captured;
      if (!side.problem.empty()) of["problem"] = side.problem;
      one["plugins"].push_back(of);
    }
    document["rows"].push_back(one);
  }
  return document;
}

} // namespace fvlm::bench
