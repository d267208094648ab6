#include "bench/quant.h"

#include "base/error.h"
#include "base/text.h"
#include "bench/times.h"
#include "bench/training.h"
#include "budget/parameter_groups.h"
#include "evaluation/evaluator.h"
#include "model/loading.h"
#include "model/weights/blocks.h"
#include "model/weights/packed_weight.h"
#include "quantize/own_head.h"
#include "quantize/weight_schemes.h"

#include <ATen/ops/randn.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <list>
#include <set>

namespace fvlm::bench {
namespace {

using Json = nlohmann::ordered_json;

plan::Quantization quantization_of(const QuantRequest& request, const PackedScheme& layers) {
  return {layers.name, request.skip, request.head};
}

// As the model is compared: with heads of its own where those are quantized, in whichever scheme.
ModelDescription description_of(const ModelDirectory& directory, const QuantRequest& request) {
  return quantize::description_of(directory, quantization_of(request, packed_schemes().front()));
}

// How its weights are stored; what is not there stays as it is.
WeightSchemes weight_schemes(const ModelDirectory& directory, const QuantRequest& request, const PackedScheme& layers) {
  return quantize::weight_schemes(description_of(directory, request), quantization_of(request, layers));
}

const PackedScheme* scheme_in(const WeightSchemes& schemes, const std::string& name) {
  const auto found = schemes.find(name);
  return found == schemes.end() ? nullptr : found->second;
}

std::unique_ptr<model::Model> plain_model(const ModelDirectory& directory, const QuantRequest& request) {
  auto model = std::make_unique<model::Model>(model::config_of(description_of(directory, request)),
                                              request.execution.arena(false));
  const auto is_tied = [&](const ops::Parameter& parameter) {
    const std::string name = budget::directory_name(parameter.name);
    return is_packable_head(name, parameter.value.sizes()) && quantize::source_of(directory, name).name != name;
  };
  model::load_weights(directory, *model, [&](const ops::Parameter& parameter) { return !is_tied(parameter); });
  for (ops::Parameter& parameter : model->parameters().all())
    if (is_tied(parameter))
      parameter.value.copy_(
          model::tensor_over(*quantize::source_of(directory, budget::directory_name(parameter.name)).view));
  return model;
}

QuantReport::Size size_of(const ModelDirectory& directory, const QuantRequest& request, const PackedScheme& scheme) {
  QuantReport::Size size{scheme.name, 0, 0, 0, 0, 0};
  const ModelDescription description = description_of(directory, request);
  const WeightSchemes schemes = weight_schemes(directory, request, scheme);
  for (const ModelPart& part : description.parts)
    for (const TensorSpec& spec : description.layout(part).tensors) {
      if (!spec.parameter) continue;
      const std::string name = part.name + "." + spec.name;
      const Parameter& source = quantize::source_of(directory, name);
      const int64_t stored = static_cast<int64_t>(source.view->byte_size()),
                    plain = source.name == name ? stored : 0; // of a tied head the embedding has them
      int64_t packed = plain;
      if (const PackedScheme* own = scheme_in(schemes, name)) {
        packed = packed_bytes(*own, spec.shape[0], spec.shape[1]);
        ++size.weights;
        size.plain += stored;
        size.packed += packed;
      }
      size.model_plain += plain;
      size.model_packed += packed;
    }
  return size;
}

std::shared_ptr<ops::Quantizer> quantizer_for(const std::string& scheme, const at::Tensor& weight, Registry& registry,
                                              const ops::OperationsOptions& options) {
  fvlm_quantizer_query query{};
  query.struct_size = sizeof query;
  query.device = ops::abi_device(options.device);
  query.dtype = ops::abi_dtype(weight.scalar_type());
  query.rows = weight.size(0);
  query.cols = weight.size(1);
  const auto choice = select<fvlm_quantizer_v1>(registry, options.quantizer, query, scheme);
  return std::make_shared<ops::Quantizer>(ops::Backend<fvlm_quantizer_v1>(choice, options.device), query);
}

// Microseconds of one product; reading a result waits for the device.
double time_of(ops::Operations& ops, ops::Parameter& parameter, const at::Tensor& x, int64_t repeat) {
  const ops::Weight weight(parameter);
  ops::Tape tape(ops::Tape::Mode::forward_only);
  const auto run = [&](int64_t times) {
    at::Tensor y;
    for (int64_t i = 0; i < times; ++i) y = ops.linear(tape, ops::Value(x), weight).data;
    (void)y.select(0, 0).select(0, 0).item<float>();
  };
  run(3);
  Times times;
  for (int part = 0; part < 5; ++part) {
    const Stopwatch watch;
    run(repeat);
    times.add(watch.stop());
  }
  return times.median() * 1e3 / static_cast<double>(repeat);
}

// The weights of a decoder's layer that are read as one, by shape.
std::vector<std::pair<std::string, std::vector<int64_t>>> product_shapes(const ModelDirectory& directory) {
  const DecoderConfig& decoder = directory.description().decoder();
  std::vector<std::pair<std::string, std::vector<int64_t>>> shapes;
  std::set<std::vector<int64_t>> known;
  for (const ParameterBlock& block : blocks_of(layout_of(decoder), "decoder.", fused_weights(decoder))) {
    if (!is_packable(block.front().name, block.front().shape) || is_of_expert(block.front().name)) continue;
    std::vector<std::string> names;
    std::vector<int64_t> shape{0, block.front().shape[1]};
    for (const ParameterSpec& spec : block) {
      const auto parts = split(spec.name, '.');
      names.push_back(parts[parts.size() - 2]);
      shape[0] += spec.shape[0];
    }
    if (known.insert(shape).second) shapes.emplace_back(join(names, " + "), shape);
  }
  return shapes;
}

std::vector<QuantReport::Product> time_products(const ModelDirectory& directory, const QuantRequest& request,
                                                Registry& registry, const QuantProgress& progress) {
  ops::Operations ops(registry, request.execution.operations());
  const auto shapes = product_shapes(directory);
  std::vector<QuantReport::Product> products;
  for (const auto& [name, shape] : shapes) {
    const at::Tensor weight = at::randn(shape, ops.tensor_options());
    std::vector<std::pair<std::string, ops::Parameter>> sides(1);
    sides[0].first = request.execution.dtype;
    sides[0].second.value = weight;
    for (const PackedScheme& scheme : request.schemes) {
      auto& [side, parameter] = sides.emplace_back();
      side = parameter.scheme = scheme.name;
      parameter.value = at::empty(shape, at::TensorOptions().device(at::kMeta));
      parameter.packed = quantizer_for(scheme.name, weight, registry, ops.options())->pack(weight);
    }
    for (const int64_t tokens : request.tokens) {
      progress("products", static_cast<int64_t>(products.size()),
               static_cast<int64_t>(shapes.size() * request.tokens.size()));
      const at::Tensor x = at::randn({tokens, shape[1]}, ops.tensor_options());
      auto& product = products.emplace_back(QuantReport::Product{name, shape[0], shape[1], tokens, {}});
      for (auto& [side, parameter] : sides)
        product.microseconds.emplace_back(side, time_of(ops, parameter, x, request.repeat));
    }
  }
  return products;
}

// The model with its weights quantized as they are on the device.
std::unique_ptr<model::Model> quantized_copy(const ModelDirectory& directory, model::Model& plain,
                                             const PackedScheme& scheme, const QuantRequest& request,
                                             const ops::Operations& ops, Registry& registry) {
  const WeightSchemes schemes = weight_schemes(directory, request, scheme);
  model::ArenaOptions arena = request.execution.arena(false);
  arena.scheme_of = [&](const ParameterSpec& spec) { return scheme_in(schemes, budget::directory_name(spec.name)); };
  auto copy = std::make_unique<model::Model>(model::config_of(description_of(directory, request)), arena);
  for (ops::Parameter& parameter : copy->parameters().all()) {
    const at::Tensor& value = plain.parameters().at(parameter.name).value;
    if (parameter.scheme.empty()) {
      parameter.value.copy_(value);
      continue;
    }
    const auto packed = quantizer_for(parameter.scheme, value, registry, ops.options())->pack(value.contiguous());
    for (size_t i = 0; i < packed.size(); ++i) parameter.packed[i].copy_(packed[i]);
  }
  return copy;
}

std::vector<QuantReport::Speed> time_generation(const ModelDirectory& directory, const QuantRequest& request,
                                                Registry& registry, const QuantProgress& progress) {
  GenerationRequest generation;
  generation.prompt = request.prompt;
  generation.answer = request.answer;
  const int64_t vocabulary = directory.description().decoders().front().vocab_size;
  const auto plain = plain_model(directory, request);
  std::vector<QuantReport::Speed> speeds;
  const auto measure = [&](const std::string& side, const model::Model& model) {
    ops::Operations ops(registry, request.execution.operations());
    for (size_t i = 0; i < request.tokens.size(); ++i) {
      const int64_t batch = request.tokens[i];
      progress(fmt::format("{}, {} answers at once", side, batch), static_cast<int64_t>(i), std::ssize(request.tokens));
      const auto took = time_answers(generation, model, ops, vocabulary, batch);
      const auto tokens = static_cast<double>(batch * request.answer);
      auto& speed =
          speeds.emplace_back(QuantReport::Speed{side, batch, took.first_seconds, tokens / took.seconds, 0, 1});
      speed.decoded_per_second =
          static_cast<double>(batch * (request.answer - 1)) / (took.seconds - took.first_seconds);
      if (speeds.size() > request.tokens.size()) speed.ratio = speed.decoded_per_second / speeds[i].decoded_per_second;
    }
  };
  measure(request.execution.dtype, *plain);
  const ops::Operations ops(registry, request.execution.operations());
  for (const PackedScheme& scheme : request.schemes)
    measure(scheme.name, *quantized_copy(directory, *plain, scheme, request, ops, registry));
  return speeds;
}

// Which part of the model a weight belongs to.
std::string module_of(const std::string& name) {
  if (!name.starts_with("decoder.")) return name.substr(0, name.find('.'));
  if (name.ends_with("lm_head.weight")) return "decoder head";
  return name.find("self_attn") != name.npos ? "decoder attention" : "decoder mlp";
}

// The stages that have evaluation sets, each set in the last of those that name it.
std::list<plan::Stage> evaluated_stages(const plan::Plan& plan) {
  std::list<plan::Stage> stages;
  std::set<std::string> seen;
  for (size_t i = plan.stages.size(); i-- > 0;) {
    plan::Stage stage = plan.stages[i];
    std::erase_if(stage.evaluation.sets, [&](const auto& set) { return !seen.insert(set.name).second; });
    if (!stage.evaluation.sets.empty()) stages.push_front(std::move(stage));
  }
  return stages;
}

std::vector<QuantReport::Loss> measure_losses(const ModelDirectory& directory, const QuantRequest& request,
                                              Registry& registry, const QuantProgress& progress) {
  ops::Operations ops(registry, request.execution.operations());
  const auto model = plain_model(directory, request);
  const std::list<plan::Stage> stages = evaluated_stages(*request.plan);
  std::vector<std::unique_ptr<evaluation::Evaluator>> evaluators;
  for (const plan::Stage& stage : stages)
    evaluators.push_back(std::make_unique<evaluation::Evaluator>(*request.plan, stage, registry));
  if (evaluators.empty())
    throw Error(ErrorKind::usage, "the recipe has no evaluation set").advise("name a recipe with one, or none");
  std::vector<QuantReport::Loss> losses;
  const auto evaluate = [&](const std::string& scheme, const std::string& module) {
    const auto note = [&](const evaluation::EvaluationState& state) {
      progress(scheme.empty() ? "losses" : scheme + ", " + module, state.done, state.all);
    };
    for (const auto& evaluator : evaluators)
      for (const evaluation::Result& result : evaluator->evaluate(*model, ops, note))
        losses.push_back({scheme, module, result.set, result.mode, result.values});
  };
  evaluate("", "none");
  for (const PackedScheme& scheme : request.schemes) {
    if (scheme.quantizes_activations) continue; // whose weights are those of another scheme
    const WeightSchemes schemes = weight_schemes(directory, request, scheme);
    std::map<std::string, std::vector<std::pair<ops::Parameter*, const PackedScheme*>>> modules;
    for (ops::Parameter& parameter : model->parameters().all()) {
      const std::string name = budget::directory_name(parameter.name);
      const PackedScheme* own = scheme_in(schemes, name);
      if (!own) continue;
      modules[module_of(name)].emplace_back(&parameter, own);
      modules["all"].emplace_back(&parameter, own);
    }
    for (const auto& [module, parameters] : modules) {
      std::vector<at::Tensor> originals;
      for (const auto& [parameter, own] : parameters) {
        originals.push_back(parameter->value.clone());
        const auto quantizer = quantizer_for(own->name, parameter->value, registry, ops.options());
        parameter->value.copy_(quantizer->unpack(quantizer->pack(parameter->value)));
      }
      evaluate(scheme.name, module);
      for (size_t i = 0; i < parameters.size(); ++i) parameters[i].first->value.copy_(originals[i]);
    }
  }
  return losses;
}

} // namespace

Json QuantReport::json() const {
  Json document{
      {"sizes", Json::array()}, {"products", Json::array()}, {"speeds", Json::array()}, {"losses", Json::array()}};
  for (const Size& size : sizes)
    document["sizes"].push_back({{"scheme", size.scheme},
                                 {"weights", size.weights},
                                 {"plain_bytes", size.plain},
                                 {"packed_bytes", size.packed},
                                 {"model_plain_bytes", size.model_plain},
                                 {"model_packed_bytes", size.model_packed}});
  for (const Product& product : products) {
    Json times = Json::object();
    for (const auto& [side, microseconds] : product.microseconds) times[side] = microseconds;
    document["products"].push_back({{"weight", product.weight},
                                    {"rows", product.rows},
                                    {"cols", product.cols},
                                    {"tokens", product.tokens},
                                    {"microseconds", times}});
  }
  for (const Speed& speed : speeds)
    document["speeds"].push_back({{"side", speed.side},
                                  {"batch", speed.batch},
                                  {"first_seconds", speed.first_seconds},
                                  {"tokens_per_second", speed.tokens_per_second},
                                  {"decoded_per_second", speed.decoded_per_second},
                                  {"ratio", speed.ratio}});
  for (const Loss& loss : losses) {
    Json one{{"scheme", loss.scheme}, {"module", loss.module}, {"set", loss.set}, {"mode", loss.mode}};
    for (const auto& [name, value] : loss.values) one[name] = value;
    document["losses"].push_back(std::move(one));
  }
  return document;
}

QuantReport measure_quant(const QuantRequest& request, Registry& registry, const QuantProgress& progress) {
  const c10::InferenceMode without_autograd;
  SyntheticModels synthetic(stored_type(request.execution.dtype));
  const ModelDirectory directory =
      ModelDirectory::open(request.model.empty() ? synthetic.of(shape_named(request.shape)) : request.model);
  directory.require_plain("bench quant");
  QuantReport report;
  for (const PackedScheme& scheme : request.schemes) report.sizes.push_back(size_of(directory, request, scheme));
  report.products = time_products(directory, request, registry, progress);
  if (request.answer > 0) report.speeds = time_generation(directory, request, registry, progress);
  if (request.plan) report.losses = measure_losses(directory, request, registry, progress);
  return report;
}

} // namespace fvlm::bench
