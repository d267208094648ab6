// What MFU is a share of.
#include "device/peak.h"

#include <gtest/gtest.h>

using namespace fvlm::device;

TEST(PeakFlops, Fp32IsNotHeldAgainstTf32) {
  constexpr const char* h100 = "NVIDIA H100 80GB HBM3";
  EXPECT_DOUBLE_EQ(peak_flops(h100, Arithmetic::fp32).value_or(0), 66.9e12);
  EXPECT_DOUBLE_EQ(peak_flops(h100, Arithmetic::tf32).value_or(0), 494.7e12);
  EXPECT_DOUBLE_EQ(peak_flops(h100, Arithmetic::half).value_or(0), 989.4e12);
}

TEST(PeakFlops, CardsOfAFamilyAreToldApart) {
  EXPECT_DOUBLE_EQ(peak_flops("NVIDIA H100 PCIe", Arithmetic::half).value_or(0), 756e12);
  EXPECT_DOUBLE_EQ(peak_flops("NVIDIA A100-SXM4-80GB", Arithmetic::tf32).value_or(0), 156e12);
  EXPECT_EQ(peak_flops("a card that nobody knows", Arithmetic::half), std::nullopt) << "no share of a guess";
}
