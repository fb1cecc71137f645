/* SPDX-License-Identifier: Apache-2.0
 *
 * The built-in blocks: GPT-2 and Llama families as a list of blocks.
 *
 *   embed      token (+ position) embedding; tokens -> [rows, C]
 *   blocks.i   pre-norm transformer block; [rows, C] -> [rows, C]
 *   head       final norm + linear head + cross entropy in row chunks: logits never exist whole
 *
 * All of them take tensor, sequence and context parallelism from the layout. Parameter names:
 * embed.tokens, embed.positions, blocks.I.norm1.weight/.bias, blocks.I.attn.qkv.weight/.bias,
 * blocks.I.attn.out.weight/.bias, blocks.I.norm2.*, blocks.I.mlp.up.weight/.bias (Llama:
 * mlp.gate_up), blocks.I.mlp.down.*, head.norm.*, head.weight (untied). Llama has no biases, no
 * positions table, an untied head only with "untied". Linear weights are [out, in]; qkv [(H + 2
 * Hkv) * D, C] is the query rows, then the key rows, then the value rows, each by heads; gate_up [2
 * F, C] is gate over up.
 */
#ifndef GEEKTRAIN_MODEL_H
#define GEEKTRAIN_MODEL_H

#include <geektrain/block.h>
#include <geektrain/config.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Appends embed, blocks.0 .. blocks.(layers-1), head. Errors: GT_ERR_CONFIG naming what does not
 * fit: heads not dividing width, zero layers, ... */
GT_API gt_status gt_model_add_gpt(gt_model *model, const gt_model_config *config);
/* What gt_model_add_gpt would refuse, and what the mesh would: heads that tp does not divide, a
 * sequence that 2*cp does not divide. mesh may be NULL. Pure. Errors: GT_ERR_CONFIG. */
GT_API gt_status gt_model_config_check(const gt_model_config *config, const gt_mesh_config *mesh);

/* Single blocks, to be mixed with your own. config is copied. The embedding is first (tokens ->
 * rows), the head last; an embedding named other than "embed" needs an untied head. */
GT_API gt_status gt_model_add_embedding(gt_model *model, const char *name,
                                        const gt_model_config *config);
GT_API gt_status gt_model_add_transformer(gt_model *model, const char *name,
                                          const gt_model_config *config);
GT_API gt_status gt_model_add_head(gt_model *model, const char *name,
                                   const gt_model_config *config);

#ifdef __cplusplus
}
#endif
#endif
