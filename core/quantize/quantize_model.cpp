#include "quantize/quantize_model.h"

#include "base/error.h"
#include "model/loading.h"
#include "model/weights/convert.h"
#include "ops/quantizer.h"
#include "quantize/error_feedback.h"
#include "quantize/own_head.h"
#include "quantize/weight_schemes.h"

namespace fvlm::quantize {
namespace {

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), static_cast<size_t>(tensor.nbytes())};
}

// Writes parameter by parameter, quantizing each weight when the first of its tensors is wanted.
class Writing {
 public:
  Writing(const QuantizeRequest& request, Registry& registry, const ModelDirectory& directory)
      : request_(request), registry_(registry), directory_(directory),
        description_(description_of(directory, request.quantization)),
        schemes_(weight_schemes(description_, request.quantization)),
        writer_(
            request.out, description_,
            [&](const std::string& name) { return request.dtype.value_or(directory.at(name).view->dtype); }, schemes_) {
  }

  TransferReport run(const TransferProgress& progress) {
    uint64_t done = 0, all = 0;
    for (const TensorInfo& tensor : writer_.order()) all += tensor.byte_size();
    for (const TensorInfo& tensor : writer_.order()) {
      const std::string weight = tensor.name.substr(0, tensor.name.rfind('_'));
      if (const auto scheme = schemes_.find(weight); scheme != schemes_.end() && weight != tensor.name)
        write_packed(tensor, weight, *scheme->second);
      else
        write_plain(tensor);
      progress(done += tensor.byte_size(), all);
    }
    writer_.commit();
    return std::move(report_);
  }

 private:
  struct Packed {
    at::Tensor codes, scales;
  };

  TransferReport::PartReport& part_of(const TensorInfo& tensor) {
    const std::string name = tensor.name.substr(0, tensor.name.find('.'));
    if (report_.parts.empty() || report_.parts.back().name != name) report_.parts.push_back({.name = name});
    report_.parts.back().bytes += tensor.byte_size();
    return report_.parts.back();
  }

  void write_plain(const TensorInfo& tensor) {
    auto& part = part_of(tensor);
    part.parameters += tensor.elements();
    ++part.tensors[tensor.dtype];
    const TensorView& view = *directory_.at(tensor.name).view;
    if (view.dtype == tensor.dtype) return writer_.append(view.data);
    std::vector<std::byte> converted(tensor.byte_size());
    if (const uint64_t lost = convert(view.data, view.dtype, converted, tensor.dtype))
      report_.overflowed[tensor.name] += lost;
    writer_.append(converted);
  }

  void write_packed(const TensorInfo& tensor, const std::string& weight, const PackedScheme& scheme) {
    auto& part = part_of(tensor);
    const std::vector<int64_t>& shape = source_of(directory_, weight).spec->shape;
    if (tensor.name.ends_with("_shape")) return writer_.append(std::as_bytes(std::span(shape)));
    if (tensor.name.ends_with("_scale")) return writer_.append(bytes_of(packed(weight, scheme).scales));
    const int64_t rows = shape[0], cols = shape[1];
    part.parameters += static_cast<uint64_t>(rows * cols);
    ++part.tensors[tensor.dtype];
    const auto codes = bytes_of(packed(weight, scheme).codes);
    const auto row_bytes = static_cast<size_t>(scheme.code_bytes(cols)),
               row_words = static_cast<size_t>(scheme.words(cols)) * 4;
    std::vector<std::byte> words(tensor.byte_size());
    for (size_t row = 0; row < static_cast<size_t>(rows); ++row)
      pack_codes(scheme, codes.subspan(row * row_bytes, row_bytes), cols,
                 std::span(words).subspan(row * row_words, row_words));
    writer_.append(words);
    packed_.erase(weight);
  }

  // Codes and scales of a weight; the file wants all scales of a part before any codes.
  const Packed& packed(const std::string& weight, const PackedScheme& scheme) {
    if (const auto known = packed_.find(weight); known != packed_.end()) return known->second;
    const Parameter& source = source_of(directory_, weight);
    const at::Tensor values = model::tensor_over(*source.view).to(at::kFloat);
    if (!values.isfinite().all().item<bool>())
      throw Error(ErrorKind::data, "{} has values that are not finite", shown(source.name))
          .at(directory_.path().string())
          .advise("leave it out with --skip, or export a sound checkpoint");
    const auto found = request_.calibration.find(weight);
    const InputMoments moments = found == request_.calibration.end() ? InputMoments() : found->second;
    const auto packed = quantizer_for(values, scheme).pack(values.contiguous(), moments.squares);
    directory_.drop(source);
    Packed made{packed[0], packed[1]};
    if (moments.products.defined()) made.codes = codes_with_feedback(values, made.scales, moments.products, scheme);
    return packed_.emplace(weight, std::move(made)).first->second;
  }

  const ops::Quantizer& quantizer_for(const at::Tensor& weight, const PackedScheme& scheme) {
    auto& quantizer = quantizers_[{scheme.name, weight.size(0), weight.size(1)}];
    if (quantizer) return *quantizer;
    fvlm_quantizer_query query{};
    query.struct_size = sizeof query;
    query.device = ops::abi_device(at::kCPU);
    query.dtype = ops::abi_dtype(at::kFloat);
    query.rows = weight.size(0);
    query.cols = weight.size(1);
    const auto choice = select<fvlm_quantizer_v1>(registry_, request_.preference, query, scheme.name);
    quantizer = std::make_shared<ops::Quantizer>(ops::Backend<fvlm_quantizer_v1>(choice, at::kCPU), query);
    return *quantizer;
  }

  const QuantizeRequest& request_;
  Registry& registry_;
  const ModelDirectory& directory_;
  ModelDescription description_; // of what is written
  WeightSchemes schemes_;
  ModelDirectoryWriter writer_;
  std::map<std::string, Packed> packed_;
  std::map<std::tuple<std::string, int64_t, int64_t>, std::shared_ptr<ops::Quantizer>> quantizers_;
  TransferReport report_;
};

} // namespace

TransferReport quantize_model(const QuantizeRequest& request, Registry& registry, const TransferProgress& progress) {
  const ModelDirectory directory = ModelDirectory::open(request.model);
  directory.require_plain("export --quantize");
  directory.require_no_adapters("export --quantize");
  directory.verify();
  return Writing(request, registry, directory).run(progress);
}

} // namespace fvlm::quantize
