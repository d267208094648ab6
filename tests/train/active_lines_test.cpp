// Log lines about a stage's parts, for devices and plugins that this machine need not have.
#include "train/active_lines.h"

#include <gmock/gmock.h>

namespace fvlm::train {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::StartsWith;

SelectionReport chosen(const std::string& subject, const std::string& plugin, const std::string& reason = "") {
  SelectionReport report;
  report.subject = subject;
  report.chosen = plugin;
  report.considered.push_back({plugin, true, 100, reason, {}});
  return report;
}

struct ActiveLines : testing::Test {
  std::vector<std::string> lines(at::Device device) const {
    return active_lines(plan, stage, device, {operations, optimizers, packer, packing, did_without_fp8});
  }
  plan::Plan plan;
  plan::Stage stage;
  std::vector<SelectionReport> operations, optimizers;
  SelectionReport packer = chosen("packer", "packer-bestfit");
  PackingStatistics packing;
  bool did_without_fp8 = false;
};

TEST_F(ActiveLines, NameTf32OnlyWhereProductsUseIt) {
  plan.precision = plan::Precision::tf32;
  const at::Device gpu(at::kCUDA, 0);
  operations = {chosen("kernels rmsnorm", "kernels-cuda"), chosen("kernels linear", "reference")};
  EXPECT_EQ(product_precision(plan.precision, gpu, operations), plan::Precision::tf32);
  EXPECT_THAT(lines(gpu), Contains("Using precision: fp32, linear layers multiplied in TF32"));
  EXPECT_EQ(product_precision(plan.precision, at::kCPU, operations), plan::Precision::fp32);
  EXPECT_THAT(lines(at::kCPU), Contains(StartsWith("Using precision: fp32 (\"tf32\" is the recipe's, and a CPU")));
  operations.push_back(chosen("kernels linear", "kernels-cublaslt")); // of another shape
  EXPECT_EQ(product_precision(plan.precision, gpu, operations), plan::Precision::fp32);
  EXPECT_THAT(lines(gpu), Contains(HasSubstr("multiplies in fp32; kernels = { linear = \"reference\" }")));
  EXPECT_EQ(product_precision(plan::Precision::bf16, gpu, operations), plan::Precision::bf16);
}

TEST_F(ActiveLines, NameFp8OnlyWhereProductsUseIt) {
  plan.precision = plan::Precision::fp8;
  EXPECT_THAT(lines(at::Device(at::kCUDA, 0)), Contains(HasSubstr("linears of the decoder's inner layers in fp8")));
  did_without_fp8 = true;
  EXPECT_THAT(lines(at::Device(at::kCUDA, 0)), Contains(StartsWith("Using precision: bf16, master weights in fp32 (")));
}

TEST_F(ActiveLines, NameEachPluginOnceWithPreferencesAndRefusals) {
  operations = {chosen("kernels linear", "kernels-cublaslt", "cuBLASLt"), chosen("kernels rope", "kernels-cuda"),
                chosen("kernels linear", "kernels-cublaslt", "cuBLASLt"), chosen("kernels swiglu", "kernels-cuda"),
                chosen("attention", "attention-flash", "tiles")};
  operations.back().considered.insert(operations.back().considered.begin(),
                                      {{"attention-cudnn", false, 0, "head_dim 80", {}, false, true},
                                       {"attention-cpu", false, 0, "works on cpu only", {}, false, false}});
  optimizers = {chosen("optimizer muon", "optimizer-muon"), chosen("optimizer adamw", "optimizer-cuda")};
  stage.activation_checkpointing.decoder.every = 2;
  const auto all = lines(at::kCPU);
  EXPECT_THAT(all, Contains("Using attention backend: attention-flash (tiles); attention-cudnn refused: head_dim 80"));
  EXPECT_THAT(all, Contains("Using kernel backends: kernels-cublaslt (linear), kernels-cuda (rope, swiglu)"));
  EXPECT_THAT(all, Contains("Using optimizer backend: optimizer-muon (muon), optimizer-cuda (adamw)"));
  EXPECT_THAT(all, Contains("Using activation checkpointing: vision off, decoder one layer of 2"));
}

TEST_F(ActiveLines, NameKernelsInOneOrderAndWhatPluginsShare) {
  operations = {chosen("kernels scaled_rows", "reference"), chosen("kernels linear", "reference"),
                chosen("kernels linear", "kernels-cpu"), chosen("kernels layernorm", "kernels-cpu")};
  const auto line =
      Contains("Using kernel backends: kernels-cpu (layernorm, linear for some shapes), reference (linear "
               "for some shapes, scaled_rows)");
  EXPECT_THAT(lines(at::kCPU), line);
  std::reverse(operations.begin(), operations.end());
  EXPECT_THAT(lines(at::kCPU), line) << "as another stage selects them";
}

TEST_F(ActiveLines, ShowWhatPackingSaves) {
  const auto sample = [](int64_t frames, size_t tokens) {
    auto made = std::make_shared<Sample>();
    made->frames = frames;
    made->texts.emplace_back().ids.resize(tokens);
    return PackedSample{0, made, 0};
  };
  HostPack pack;
  pack.samples = {sample(2, 8), sample(0, 40), sample(4, 6)};
  packing.add(pack);
  packing.padding_share = 0.1;
  EXPECT_THAT(lines(at::kCPU), Contains("Using packer backend: packer-bestfit; first step: 3 sequences -> 1 pack, "
                                        "padding 10.0 % (without packing 50.0 %)"))
      << "of three times forty tokens, sixty hold nothing";
  packing.padding_share = 0.8;
  EXPECT_THAT(lines(at::kCPU),
              Contains(testing::HasSubstr("padding 80.0 % (without packing 50.0 %); a pack has a fixed "
                                          "capacity, and few samples fill it: set packing")));
}

} // namespace
} // namespace fvlm::train
