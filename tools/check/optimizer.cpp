#include "check/optimizer.h"

#include "check/families.h"
#include "check/formulas.h"
#include "check/workbench.h"

#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace fvlm::check {
namespace {

// A case completed with the plugin's defaults.
struct Problem {
  OptimizerCase c;
  std::string algorithm;
  std::vector<std::string> names;         // of hyperparameters
  std::vector<std::vector<double>> hyper; // by group, in the table's order, as float32 holds them
  std::vector<fvlm_optimizer_segment> segments;
  std::vector<std::pair<std::string, at::ScalarType>> states;
  int64_t elements = 0;
  int64_t groups = 1;

  double value(int64_t group, const std::string& name) const {
    auto found = std::ranges::find(names, name);
    return found == names.end() ? 0 : hyper[static_cast<size_t>(group)][static_cast<size_t>(found - names.begin())];
  }
  // Learning rates fall from step to step, unless the case sets one.
  Problem at_step(int step) const {
    Problem now = *this;
    const auto rate = std::ranges::find(names, "lr");
    const bool asked = std::ranges::any_of(c.hyper, [](const auto& one) { return one.first == "lr"; });
    if (rate == names.end() || asked) return now;
    for (auto& group : now.hyper) {
      double& value = group[static_cast<size_t>(rate - names.begin())];
      value = static_cast<double>(static_cast<float>(value * std::pow(0.9, step - 1)));
    }
    return now;
  }
  at::Tensor hyper_tensor() const {
    std::vector<double> all;
    for (const auto& group : hyper) all.insert(all.end(), group.begin(), group.end());
    return at::tensor(all, at::kFloat).reshape({groups, -1});
  }
  fvlm_optimizer_query query(at::Device device) const {
    fvlm_optimizer_query query{};
    query.struct_size = sizeof query;
    query.device = device_of(device);
    query.gradient_dtype = dtype_of(c.gradient_dtype);
    query.parameter_dtype = dtype_of(c.parameter_dtype);
    query.state_dtype = dtype_of(c.state_dtype);
    query.elements = elements;
    query.segment_count = static_cast<int64_t>(segments.size());
    query.group_count = groups;
    query.segments = segments.data();
    return query;
  }
};

void lay_out(Problem& p) {
  int64_t at = p.c.gap;
  for (size_t i = 0; i < p.c.shapes.size(); ++i) {
    const auto [rows, cols] = p.c.shapes[i];
    const int64_t group = i < p.c.groups.size() ? p.c.groups[i] : 0;
    p.segments.push_back({at, rows, cols, group});
    p.groups = std::max(p.groups, group + 1);
    at += rows * cols + p.c.gap;
  }
  p.elements = at;
  if (p.c.backwards) std::ranges::reverse(p.segments);
}

Problem problem_of(Context& context, OptimizerCase c) {
  const auto& table = context.table<fvlm_optimizer_v1>();
  if (c.shapes.empty()) {
    c.shapes = {{16, 24}, {10, 33}};
    if (takes_vectors(context)) c.shapes.insert(c.shapes.end(), {{1, 57}, {1, 1}});
  }
  Problem p{.c = c, .algorithm = algorithm_of(context)};
  lay_out(p);
  p.hyper.resize(static_cast<size_t>(p.groups));
  for (int32_t i = 0; i < table.hyperparameter_count; ++i) {
    const fvlm_hyperparameter& described = table.hyperparameters[i];
    p.names.emplace_back(described.name ? described.name : "");
    for (int64_t group = 0; group < p.groups; ++group) {
      double value = described.fallback;
      if (p.names.back() == "lr") value = std::clamp(0.01, described.least, described.most);
      for (const auto& [name, values] : c.hyper)
        if (name == p.names.back()) value = values[std::min(values.size() - 1, static_cast<size_t>(group))];
      p.hyper[static_cast<size_t>(group)].push_back(static_cast<double>(static_cast<float>(value)));
    }
  }
  fvlm_optimizer_state states[FVLM_MAX_STATES] = {};
  const fvlm_optimizer_query query = p.query(context.device);
  const int32_t count = table.states(&query, states);
  if (count < 0 || count > FVLM_MAX_STATES)
    throw RowAborted{State::failed,
                     fmt::format("states() returned {}, at most {} are allowed", count, FVLM_MAX_STATES)};
  for (int32_t i = 0; i < count; ++i)
    p.states.emplace_back(states[i].name ? states[i].name : "", scalar_type(states[i].dtype));
  return p;
}

at::Tensor inside(const Problem& p) {
  auto mask = at::zeros({p.elements}, at::kBool);
  for (const auto& segment : p.segments) mask.narrow(0, segment.offset, segment.rows * segment.cols).fill_(true);
  return mask;
}

// Perturbs up by half a rounding or down by one, depending on the sign of other numbers.
at::Tensor perturb(const at::Tensor& numbers, uint64_t seed) {
  return numbers + numbers * (normal(numbers.sizes(), seed, at::kDouble).sign() * 0x1p-24).to(numbers.scalar_type());
}

// The numbers of an arena, repeated with the case's period if it has one.
at::Tensor numbers(const Problem& p, uint64_t seed, at::ScalarType dtype, double size) {
  if (p.c.period == 0) return normal({p.elements}, seed, dtype, size);
  const int64_t turns = (p.elements + p.c.period - 1) / p.c.period;
  return normal({p.c.period}, seed, dtype, size).repeat({turns}).narrow(0, 0, p.elements).clone();
}

at::Tensor master_of(const Problem& p) {
  auto master = numbers(p, p.c.seed * 64, at::kFloat, 0.5);
  if (p.c.ties) { // sets the first bit that the parameter's type lacks and clears those after it
    const int32_t half = p.c.parameter_dtype == at::kHalf ? 1 << 12 : 1 << 15;
    auto bits = master.view(at::kInt);
    bits.bitwise_and_(~(2 * half - 1)).bitwise_or_(half);
  }
  return p.c.perturbed ? perturb(master, 77) : master;
}

at::Tensor gradient_of(const Problem& p, int step) {
  const uint64_t seed = p.c.seed * 64 + static_cast<uint64_t>(step);
  auto gradient = numbers(p, seed, p.c.gradient_dtype, p.c.gradient_size);
  if (p.c.gradient_rounded_to != at::kFloat)
    gradient = numbers(p, seed, p.c.gradient_rounded_to, p.c.gradient_size).to(p.c.gradient_dtype);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  if (p.c.perturbed && p.c.gradient_dtype == at::kFloat) gradient = perturb(gradient, 78);
  if (p.c.gradient_nan) gradient.fill_(nan);
  return gradient.masked_fill(inside(p).logical_not(), nan);
}

// The parameter of these masters. Between the segments it holds other numbers than they, so that a copy of all elements
// shows.
at::Tensor parameter_of(const Problem& p, const at::Tensor& master) {
  return at::where(inside(p), master, -master);
}

struct Arenas {
  at::Tensor master;
  std::vector<at::Tensor> states;
};

void adamw(const Problem& p, const fvlm_optimizer_segment& s, const at::Tensor& master, const at::Tensor& gradient,
           std::vector<at::Tensor> states, double step) {
  const double lr = p.value(s.group, "lr"), beta1 = p.value(s.group, "beta1"), beta2 = p.value(s.group, "beta2");
  auto g = gradient * p.c.scale;
  auto m = states[0] * beta1 + g * (1 - beta1), v = states[1] * beta2 + g * g * (1 - beta2);
  auto spread = at::sqrt(v) / std::sqrt(1 - std::pow(beta2, step)) + p.value(s.group, "eps");
  master.copy_(master * (1 - lr * p.value(s.group, "weight_decay")) - m / spread * (lr / (1 - std::pow(beta1, step))));
  states[0].copy_(m);
  states[1].copy_(v);
}

at::Tensor newton_schulz(at::Tensor x, double eps) {
  const bool tall = x.size(0) > x.size(1);
  if (tall) x = x.t();
  x = x / x.norm().clamp_min(eps);
  for (int i = 0; i < 5; ++i) {
    auto gram = at::matmul(x, x.t());
    x = x * 3.4445 + at::matmul(gram * -4.7750 + at::matmul(gram, gram) * 2.0315, x);
  }
  return tall ? x.t() : x;
}

// In float64 nothing is rounded; else the Newton-Schulz steps run in bfloat16, as the header allows.
void muon(const Problem& p, const fvlm_optimizer_segment& s, const at::Tensor& master, const at::Tensor& gradient,
          std::vector<at::Tensor> states, bool exact) {
  const double lr = p.value(s.group, "lr"), momentum = p.value(s.group, "momentum");
  auto g = gradient * p.c.scale;
  auto buffer = states[0] * momentum + g * (1 - momentum);
  auto update = p.value(s.group, "nesterov") != 0 ? g * (1 - momentum) + buffer * momentum : buffer;
  update = update.reshape({s.rows, s.cols});
  if (!exact) update = update.to(at::kBFloat16);
  update = newton_schulz(update, p.value(s.group, "eps")).to(master.scalar_type()).reshape({-1});
  const double tall = std::sqrt(std::max(1.0, static_cast<double>(s.rows) / static_cast<double>(s.cols)));
  master.copy_(master * (1 - lr * p.value(s.group, "weight_decay")) - update * (lr * tall));
  states[0].copy_(buffer);
}

Arenas formula(const Problem& p, at::ScalarType work) {
  Arenas a{master_of(p).to(work), {}};
  a.states.resize(p.states.size());
  for (at::Tensor& state : a.states) state = at::zeros({p.elements}, work);
  for (int step = 1; step <= p.c.steps && p.c.skip == 0; ++step) {
    const Problem now = p.at_step(step);
    auto gradient = gradient_of(p, step).to(work);
    for (const auto& segment : p.segments) {
      const int64_t size = segment.rows * segment.cols;
      if (size == 0) continue;
      auto part = [&](const at::Tensor& arena) { return arena.narrow(0, segment.offset, size); };
      std::vector<at::Tensor> states;
      for (const auto& state : a.states) states.push_back(part(state));
      if (p.algorithm == "adamw")
        adamw(now, segment, part(a.master), part(gradient), states, static_cast<double>(p.c.first_step + step - 1));
      else
        muon(now, segment, part(a.master), part(gradient), states, work == at::kDouble);
    }
    // A narrow state is rounded at every step.
    if (work != at::kDouble)
      for (size_t i = 0; i < a.states.size(); ++i) a.states[i] = a.states[i].to(p.states[i].second).to(work);
  }
  return a;
}

Expectation expect(const Problem& p) {
  Arenas exact = formula(p, at::kDouble), naive = formula(p, at::kFloat);
  Expectation all{{"master", exact.master, naive.master, at::kFloat}};
  for (size_t i = 0; i < p.states.size(); ++i)
    all.push_back({p.states[i].first, exact.states[i], naive.states[i], p.states[i].second});
  if (p.c.parameter_dtype != at::kFloat) {
    // The copy is rounded to nearest; elements that were not updated keep their content.
    auto rounded = [&](const at::Tensor& master) {
      auto copy = p.c.skip ? master_of(p) : master;
      return parameter_of(p, copy).to(at::kFloat).to(p.c.parameter_dtype).to(at::kDouble);
    };
    all.push_back({"parameter", parameter_of(p, exact.master), rounded(naive.master), p.c.parameter_dtype});
  }
  return all;
}

Run run(Context& context, const Problem& p, const Variation& given) {
  const auto& table = context.table<fvlm_optimizer_v1>();
  std::optional<Instance> own, next;
  Variation variation = given;
  if (p.c.new_instance_after > 0) {
    own.emplace(context, context.host());
    next.emplace(context, context.host());
    variation.instance = own->get();
  }
  Workbench bench(context, variation);
  const fvlm_optimizer_query query = p.query(context.device);
  if (!bench.begin(table, query)) return bench.finish();

  std::vector<int64_t> listed;
  for (const auto& s : p.segments) listed.insert(listed.end(), {s.offset, s.rows, s.cols, s.group});
  Operand& master = bench.updated("master", master_of(p));
  Operand* parameter = p.c.parameter_dtype == at::kFloat
                           ? nullptr
                           : &bench.updated("parameter", parameter_of(p, master_of(p)).to(p.c.parameter_dtype));
  std::vector<Operand*> arenas{&master};
  if (parameter) arenas.push_back(parameter);
  fvlm_optimizer_step step{};
  for (size_t i = 0; i < p.states.size(); ++i) {
    Operand& state = bench.updated(p.states[i].first, at::zeros({p.elements}, p.states[i].second));
    step.state[i] = state.abi();
    arenas.push_back(&state);
  }
  step.master = master.abi();
  step.parameter = abi_of(parameter);
  step.segments = bench.input("segments", at::tensor(listed, at::kLong).reshape({-1, 4}), Rows::contiguous).abi();
  step.scale = bench.input("scale", at::full({1}, p.c.scale, at::kFloat)).abi();
  step.skip = bench.input("skip", at::full({1}, p.c.skip, at::kInt)).abi();
  for (int i = 1; i <= p.c.steps; ++i) {
    if (p.c.new_instance_after > 0 && i == p.c.new_instance_after + 1) bench.change_instance(next->get());
    step.hyper = bench.input("hyper", p.at_step(i).hyper_tensor(), Rows::contiguous).abi();
    step.gradient = bench.input("gradient", gradient_of(p, i), Rows::contiguous).abi();
    step.step = bench.input("step", at::full({1}, p.c.first_step + i - 1, at::kLong)).abi();
    if (i > 1)
      for (Operand* arena : arenas) bench.let_write(*arena);
    if (!bench.call("step", bench.required().forward_workspace, table.step, step) && !bench.can_continue()) break;
  }
  return bench.finish();
}

// The plugin's own results of a plain run, and of one with perturbed inputs.
Expectation own_results(Context& context, Problem p) {
  const Run plain = run(context, p, {});
  if (!plain.done()) throw RowAborted{State::failed, fmt::format("a plain run: {}", plain.failure())};
  p.c.perturbed = true;
  if (p.c.gradient_dtype != at::kFloat) p.c.scale *= 1 + 0x1p-23;
  const Run perturbed = run(context, p, {});
  if (!perturbed.done()) throw RowAborted{State::failed, fmt::format("a plain run: {}", perturbed.failure())};
  Expectation all;
  for (const auto& [name, tensor] : plain.outputs)
    all.push_back({name, tensor.to(at::kDouble), *perturbed.output(name), tensor.scalar_type()});
  return all;
}

std::string label(const Problem& p) {
  std::string text = fmt::format("{} elements in {} segments", p.elements, p.segments.size());
  if (p.segments.size() <= 3) {
    text = "segments";
    for (const auto& s : p.segments) text += fmt::format(" {}x{}", s.rows, s.cols);
  }
  if (p.c.gradient_dtype != at::kFloat) text += ", gradients " + name_of(p.c.gradient_dtype);
  if (p.c.parameter_dtype != at::kFloat) text += ", parameters " + name_of(p.c.parameter_dtype);
  if (p.c.state_dtype != at::kFloat) text += ", states " + name_of(p.c.state_dtype);
  if (p.c.gap > 0) text += fmt::format(", gaps of {}", p.c.gap);
  if (p.groups > 1) text += fmt::format(", {} groups", p.groups);
  if (p.c.steps > 1) text += fmt::format(", {} steps", p.c.steps);
  if (p.c.scale != 1) text += fmt::format(", scale {}", p.c.scale);
  if (p.c.skip) text += fmt::format(", skip {}", p.c.skip);
  return text;
}

fvlm_support supports(Context& context, const Problem& p) {
  return query_support(context.table<fvlm_optimizer_v1>().supports, p.query(context.device));
}

} // namespace

std::string algorithm_of(Context& context) {
  const char* name = context.table<fvlm_optimizer_v1>().algorithm;
  return name ? name : "";
}

bool algorithm_known(Context& context) {
  return algorithm_of(context) == "adamw" || algorithm_of(context) == "muon";
}

bool takes_vectors(Context& context) {
  Problem p{.c = {.shapes = {{1, 57}}}, .algorithm = ""};
  lay_out(p);
  return supports(context, p).score > 0;
}

Trial optimizer_trial(Context& context, OptimizerCase c) {
  auto problem = std::make_shared<Problem>(problem_of(context, std::move(c)));
  Trial trial;
  trial.label = label(*problem);
  trial.supports = [problem](Context& other) { return supports(other, *problem); };
  trial.run = [problem](Context& other, const Variation& variation) { return run(other, *problem, variation); };
  const bool known = algorithm_known(context);
  trial.expect = once([problem, known, &context] { return known ? expect(*problem) : own_results(context, *problem); });
  return trial;
}

std::vector<Trial> optimizer_cases(Context& context, const std::vector<OptimizerCase>& cases) {
  return trials_of(cases, [&](const OptimizerCase& one) { return optimizer_trial(context, one); });
}

at::Tensor inside_segments(Context& context, OptimizerCase c) {
  return inside(problem_of(context, std::move(c)));
}

std::vector<Trial> optimizer_trials(Context& context) {
  return optimizer_cases(context, {{.steps = 2}, {.shapes = {{40, 64}, {64, 40}}, .steps = 3}});
}

std::vector<Trial> optimizer_odd_trials(Context& context) {
  OptimizerCase odd{.shapes = {{3, 5}, {7, 3}}, .gap = 3, .steps = 2};
  if (takes_vectors(context)) odd.shapes.emplace_back(1, 9);
  return optimizer_cases(context, {odd});
}

std::vector<Trial> optimizer_sweep(Context& context) {
  std::vector<OptimizerCase> cases;
  for (auto gradient : floating)
    for (auto parameter : {at::kFloat, at::kBFloat16, at::kHalf})
      for (auto state : {at::kFloat, at::kBFloat16})
        cases.push_back({.gradient_dtype = gradient, .parameter_dtype = parameter, .state_dtype = state});
  cases.push_back({.shapes = {{1, 100}}});
  cases.push_back({.shapes = {{100, 1}}});
  cases.push_back({.shapes = {{3, 5}}, .gap = 7});
  return optimizer_cases(context, cases);
}

} // namespace fvlm::check
