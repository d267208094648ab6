// abi_layout_test.cpp: the ABI of version 1.0 on x86-64, field by field. A change here breaks published plugins:
// append, and add a line. sdk/docs/ABI.md says what may change when.
#include "abi_layout.h"

#include <fvlm/cache.h>

#include <gtest/gtest.h>

namespace {

VALUE(FVLM_CPU, 1);
VALUE(FVLM_CUDA, 2);
VALUE(FVLM_INT, 0);
VALUE(FVLM_UINT, 1);
VALUE(FVLM_FLOAT, 2);
VALUE(FVLM_BFLOAT, 4);
VALUE(FVLM_OK, 0);
VALUE(FVLM_ERROR_ARGUMENT, 1);
VALUE(FVLM_ERROR_UNSUPPORTED, 2);
VALUE(FVLM_ERROR_WORKSPACE, 3);
VALUE(FVLM_ERROR_DEVICE, 4);
VALUE(FVLM_ERROR_MEMORY, 5);
VALUE(FVLM_ERROR_INTERNAL, 6);
VALUE(FVLM_ERROR_DATA, 7);
VALUE(FVLM_LOG_DEBUG, 0);
VALUE(FVLM_LOG_INFO, 1);
VALUE(FVLM_LOG_WARNING, 2);
VALUE(FVLM_LOG_ERROR, 3);
VALUE(FVLM_DETERMINISTIC, 1);
VALUE(FVLM_CAPTURING, 2);
VALUE(FVLM_OP_RMSNORM, 1);
VALUE(FVLM_OP_LAYERNORM, 2);
VALUE(FVLM_OP_ROPE, 3);
VALUE(FVLM_OP_SWIGLU, 4);
VALUE(FVLM_OP_BIAS_GELU, 5);
VALUE(FVLM_OP_LAYERSCALE_RESIDUAL, 6);
VALUE(FVLM_OP_LINEAR, 7);
VALUE(FVLM_OP_SCALED_ROWS, 8);
VALUE(FVLM_OP_FOLD_ROW_SCALE, 8);
VALUE(FVLM_OP_SHORT_CONVOLUTION, 9);
VALUE(FVLM_OP_DELTA_RULE, 10);
VALUE(FVLM_OP_EXPERTS, 11);
VALUE(FVLM_WITH_BACKWARD, 1);
VALUE(FVLM_WITH_RESIDUAL, 2);
VALUE(FVLM_WITH_BIAS, 4);
VALUE(FVLM_WITH_GELU, 8);
VALUE(FVLM_WITH_SUMS, 16);
VALUE(FVLM_WITH_REST, 32);
VALUE(FVLM_COMPENSATED, 32);
VALUE(FVLM_WITH_FREQUENCIES, 64);
VALUE(FVLM_WITH_COLUMN_SUMS, 16);
VALUE(FVLM_WITH_FP8, 1 << 15);
VALUE(FVLM_FP8_PAIRS, 1 << 18);
VALUE(FVLM_WITH_STATES, 1 << 19);
VALUE(FVLM_SIGMOID_ROUTER, 1 << 21);
VALUE(FVLM_NORMALIZED_ROUTER, 1 << 22);
VALUE(FVLM_INT8_WEIGHTS, 1 << 23);
VALUE(FVLM_INT4_WEIGHTS, 1 << 24);
VALUE(FVLM_ABI_MAJOR, 1);
VALUE(FVLM_ABI_MINOR, 0);
VALUE(FVLM_MAX_SAVED, 4);
VALUE(FVLM_MAX_DIMS, 4);
VALUE(FVLM_MAX_STATES, 4);

SIZE(fvlm_device, 8);
FIELD(fvlm_device, type, 0, int32_t);
FIELD(fvlm_device, id, 4, int32_t);

SIZE(fvlm_dtype, 4);
FIELD(fvlm_dtype, code, 0, uint8_t);
FIELD(fvlm_dtype, bits, 1, uint8_t);
FIELD(fvlm_dtype, lanes, 2, uint16_t);

SIZE(fvlm_tensor, 48);
FIELD(fvlm_tensor, data, 0, void*);
FIELD(fvlm_tensor, device, 8, fvlm_device);
FIELD(fvlm_tensor, ndim, 16, int32_t);
FIELD(fvlm_tensor, dtype, 20, fvlm_dtype);
FIELD(fvlm_tensor, shape, 24, int64_t*);
FIELD(fvlm_tensor, strides, 32, int64_t*);
FIELD(fvlm_tensor, byte_offset, 40, uint64_t);

SIZE(fvlm_tensor_spec, 40);
FIELD(fvlm_tensor_spec, dtype, 0, fvlm_dtype);
FIELD(fvlm_tensor_spec, ndim, 4, int32_t);
FIELD(fvlm_tensor_spec, shape, 8, int64_t[4]);

SIZE(fvlm_error, 16);
FIELD(fvlm_error, struct_size, 0, uint32_t);
FIELD(fvlm_error, capacity, 4, uint32_t);
FIELD(fvlm_error, text, 8, char*);

SIZE(fvlm_host, 48);
FIELD(fvlm_host, struct_size, 0, uint32_t);
FIELD(fvlm_host, abi_major, 4, uint32_t);
FIELD(fvlm_host, abi_minor, 8, uint32_t);
FIELD(fvlm_host, engine_version, 16, const char*);
FIELD(fvlm_host, log, 24, void (*)(const fvlm_host*, int32_t, const char*));
FIELD(fvlm_host, parallel_for, 32,
      void (*)(const fvlm_host*, int64_t, int64_t, void (*)(void*, int64_t, int64_t), void*));
FIELD(fvlm_host, parallel_threads, 40, int32_t (*)(const fvlm_host*));

SIZE(fvlm_caching_host, 64);
FIELD(fvlm_caching_host, host, 0, fvlm_host);
FIELD(fvlm_caching_host, cache_load, 48, int32_t (*)(const fvlm_host*, fvlm_device, const char*, void*, uint64_t));
FIELD(fvlm_caching_host, cache_store, 56, void (*)(const fvlm_host*, fvlm_device, const char*, const void*, uint64_t));
VALUE(FVLM_MAX_CACHED, 4096);

SIZE(fvlm_call, 80);
FIELD(fvlm_call, struct_size, 0, uint32_t);
FIELD(fvlm_call, flags, 4, uint32_t);
FIELD(fvlm_call, device, 8, fvlm_device);
FIELD(fvlm_call, stream, 16, void*);
FIELD(fvlm_call, workspace, 24, void*);
FIELD(fvlm_call, workspace_size, 32, uint64_t);
FIELD(fvlm_call, random_seed, 40, uint64_t);
FIELD(fvlm_call, random_offset, 48, uint64_t);
FIELD(fvlm_call, random_offset_device, 56, const uint64_t*);
FIELD(fvlm_call, host, 64, const fvlm_host*);
FIELD(fvlm_call, error, 72, fvlm_error*);

SIZE(fvlm_support, 248);
FIELD(fvlm_support, struct_size, 0, uint32_t);
FIELD(fvlm_support, score, 4, int32_t);
FIELD(fvlm_support, reason, 8, char[240]);

SIZE(fvlm_requirements, 200);
FIELD(fvlm_requirements, struct_size, 0, uint32_t);
FIELD(fvlm_requirements, saved_count, 4, uint32_t);
FIELD(fvlm_requirements, forward_workspace, 8, uint64_t);
FIELD(fvlm_requirements, backward_workspace, 16, uint64_t);
FIELD(fvlm_requirements, saved, 24, fvlm_tensor_spec[4]);

SIZE(fvlm_instance_config, 24);
FIELD(fvlm_instance_config, struct_size, 0, uint32_t);
FIELD(fvlm_instance_config, device, 4, fvlm_device);
FIELD(fvlm_instance_config, host, 16, const fvlm_host*);

SIZE(fvlm_table, 24);
FIELD(fvlm_table, struct_size, 0, uint32_t);
FIELD(fvlm_table, create, 8, fvlm_status (*)(const fvlm_instance_config*, fvlm_instance**, fvlm_error*));
FIELD(fvlm_table, destroy, 16, void (*)(fvlm_instance*));

SIZE(fvlm_plugin, 40);
FIELD(fvlm_plugin, struct_size, 0, uint32_t);
FIELD(fvlm_plugin, abi_major, 4, uint32_t);
FIELD(fvlm_plugin, abi_minor, 8, uint32_t);
FIELD(fvlm_plugin, name, 16, const char*);
FIELD(fvlm_plugin, version, 24, const char*);
FIELD(fvlm_plugin, table, 32, const void* (*)(const char*));

SIZE(fvlm_optimizer_segment, 32);
FIELD(fvlm_optimizer_segment, offset, 0, int64_t);
FIELD(fvlm_optimizer_segment, rows, 8, int64_t);
FIELD(fvlm_optimizer_segment, cols, 16, int64_t);
FIELD(fvlm_optimizer_segment, group, 24, int64_t);

SIZE(fvlm_hyperparameter, 32);
FIELD(fvlm_hyperparameter, name, 0, const char*);
FIELD(fvlm_hyperparameter, fallback, 8, double);
FIELD(fvlm_hyperparameter, least, 16, double);
FIELD(fvlm_hyperparameter, most, 24, double);

SIZE(fvlm_optimizer_state, 16);
FIELD(fvlm_optimizer_state, name, 0, const char*);
FIELD(fvlm_optimizer_state, dtype, 8, fvlm_dtype);

SIZE(fvlm_optimizer_query, 56);
FIELD(fvlm_optimizer_query, struct_size, 0, uint32_t);
FIELD(fvlm_optimizer_query, device, 4, fvlm_device);
FIELD(fvlm_optimizer_query, gradient_dtype, 12, fvlm_dtype);
FIELD(fvlm_optimizer_query, parameter_dtype, 16, fvlm_dtype);
FIELD(fvlm_optimizer_query, state_dtype, 20, fvlm_dtype);
FIELD(fvlm_optimizer_query, elements, 24, int64_t);
FIELD(fvlm_optimizer_query, segment_count, 32, int64_t);
FIELD(fvlm_optimizer_query, group_count, 40, int64_t);
FIELD(fvlm_optimizer_query, segments, 48, const fvlm_optimizer_segment*);

SIZE(fvlm_optimizer_step, 104);
FIELD(fvlm_optimizer_step, struct_size, 0, uint32_t);
FIELD(fvlm_optimizer_step, master, 8, fvlm_tensor*);
FIELD(fvlm_optimizer_step, parameter, 16, fvlm_tensor*);
FIELD(fvlm_optimizer_step, gradient, 24, const fvlm_tensor*);
FIELD(fvlm_optimizer_step, state, 32, fvlm_tensor* [4]);
FIELD(fvlm_optimizer_step, segments, 64, const fvlm_tensor*);
FIELD(fvlm_optimizer_step, hyper, 72, const fvlm_tensor*);
FIELD(fvlm_optimizer_step, step, 80, const fvlm_tensor*);
FIELD(fvlm_optimizer_step, scale, 88, const fvlm_tensor*);
FIELD(fvlm_optimizer_step, skip, 96, const fvlm_tensor*);

SIZE(fvlm_optimizer_v1, 88);
FIELD(fvlm_optimizer_v1, base, 0, fvlm_table);
FIELD(fvlm_optimizer_v1, algorithm, 24, const char*);
FIELD(fvlm_optimizer_v1, hyperparameters, 32, const fvlm_hyperparameter*);
FIELD(fvlm_optimizer_v1, hyperparameter_count, 40, int32_t);
FIELD(fvlm_optimizer_v1, supports, 48, void (*)(const fvlm_optimizer_query*, fvlm_support*));
FIELD(fvlm_optimizer_v1, states, 56, int32_t (*)(const fvlm_optimizer_query*, fvlm_optimizer_state*));
FIELD(fvlm_optimizer_v1, requirements, 64,
      fvlm_status (*)(fvlm_instance*, const fvlm_optimizer_query*, fvlm_requirements*, fvlm_error*));
FIELD(fvlm_optimizer_v1, prepare, 72, fvlm_status (*)(fvlm_instance*, const fvlm_call*, const fvlm_optimizer_query*));
FIELD(fvlm_optimizer_v1, step, 80,
      fvlm_status (*)(fvlm_instance*, const fvlm_call*, const fvlm_optimizer_query*, const fvlm_optimizer_step*));

SIZE(fvlm_packer_query, 24);
FIELD(fvlm_packer_query, struct_size, 0, uint32_t);
FIELD(fvlm_packer_query, dimensions, 4, int32_t);
FIELD(fvlm_packer_query, max_items, 8, int64_t);
FIELD(fvlm_packer_query, capacity, 16, const int64_t*);

SIZE(fvlm_packer_pack, 48);
FIELD(fvlm_packer_pack, struct_size, 0, uint32_t);
FIELD(fvlm_packer_pack, item_count, 8, int64_t);
FIELD(fvlm_packer_pack, sizes, 16, const int64_t*);
FIELD(fvlm_packer_pack, seed, 24, uint64_t);
FIELD(fvlm_packer_pack, bin_of_item, 32, int32_t*);
FIELD(fvlm_packer_pack, bin_count, 40, int32_t*);

SIZE(fvlm_packer_v1, 40);
FIELD(fvlm_packer_v1, base, 0, fvlm_table);
FIELD(fvlm_packer_v1, supports, 24, void (*)(const fvlm_packer_query*, fvlm_support*));
FIELD(fvlm_packer_v1, pack, 32,
      fvlm_status (*)(fvlm_instance*, const fvlm_packer_query*, const fvlm_packer_pack*, fvlm_error*));

SIZE(fvlm_video_query, 24);
FIELD(fvlm_video_query, struct_size, 0, uint32_t);
FIELD(fvlm_video_query, format, 8, const char*);
FIELD(fvlm_video_query, most_pixels, 16, int64_t);

SIZE(fvlm_video_file, 40);
FIELD(fvlm_video_file, struct_size, 0, uint32_t);
FIELD(fvlm_video_file, size, 8, uint64_t);
FIELD(fvlm_video_file, context, 16, void*);
FIELD(fvlm_video_file, read, 24, int32_t (*)(void*, uint64_t, void*, uint64_t));
FIELD(fvlm_video_file, stop, 32, int32_t (*)(void*));

SIZE(fvlm_video_probe, 40);
FIELD(fvlm_video_probe, struct_size, 0, uint32_t);
FIELD(fvlm_video_probe, file, 8, const fvlm_video_file*);
FIELD(fvlm_video_probe, seconds, 16, double*);
FIELD(fvlm_video_probe, width, 24, int64_t*);
FIELD(fvlm_video_probe, height, 32, int64_t*);

SIZE(fvlm_video_picture, 48);
FIELD(fvlm_video_picture, struct_size, 0, uint32_t);
FIELD(fvlm_video_picture, index, 8, int64_t);
FIELD(fvlm_video_picture, width, 16, int64_t);
FIELD(fvlm_video_picture, height, 24, int64_t);
FIELD(fvlm_video_picture, stride, 32, int64_t);
FIELD(fvlm_video_picture, rgb, 40, const uint8_t*);

SIZE(fvlm_video_decode, 56);
FIELD(fvlm_video_decode, struct_size, 0, uint32_t);
FIELD(fvlm_video_decode, file, 8, const fvlm_video_file*);
FIELD(fvlm_video_decode, time_count, 16, int64_t);
FIELD(fvlm_video_decode, times, 24, const double*);
FIELD(fvlm_video_decode, picture, 32, int32_t (*)(void*, const fvlm_video_picture*));
FIELD(fvlm_video_decode, context, 40, void*);
FIELD(fvlm_video_decode, seconds, 48, double*);

SIZE(fvlm_video_v1, 48);
FIELD(fvlm_video_v1, base, 0, fvlm_table);
FIELD(fvlm_video_v1, supports, 24, void (*)(const fvlm_video_query*, fvlm_support*));
FIELD(fvlm_video_v1, probe, 32,
      fvlm_status (*)(fvlm_instance*, const fvlm_video_query*, const fvlm_video_probe*, fvlm_error*));
FIELD(fvlm_video_v1, decode, 40,
      fvlm_status (*)(fvlm_instance*, const fvlm_video_query*, const fvlm_video_decode*, fvlm_error*));

// Properties of the compiler that the ABI relies on.
static_assert(sizeof(void*) == 8 && sizeof(float) == 4 && sizeof(double) == 8 && sizeof(std::int64_t) == 8);

TEST(AbiLayout, EntrySymbolAndKindsHaveTheirNames) {
  EXPECT_STREQ(FVLM_PLUGIN_ENTRY, "fvlm_plugin_entry_v1");
  EXPECT_STREQ(FVLM_ATTENTION_KIND, "fvlm.attention/1");
  EXPECT_STREQ(FVLM_LOSS_KIND, "fvlm.loss/1");
  EXPECT_STREQ(FVLM_KERNELS_KIND, "fvlm.kernels/1");
  EXPECT_STREQ(FVLM_PACKER_KIND, "fvlm.packer/1");
  EXPECT_STREQ(FVLM_VIDEO_KIND, "fvlm.video/1");
  EXPECT_STREQ(FVLM_OPTIMIZER_KIND("adamw"), "fvlm.optimizer/1:adamw");
  EXPECT_STREQ(FVLM_QUANTIZER_KIND("int8"), "fvlm.quantizer/1:int8");
}

} // namespace
