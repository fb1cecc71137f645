/* SPDX-License-Identifier: Apache-2.0
 * Every operation against PyTorch's numbers (tests/golden/). */
#include "golden.h"
#include "harness.h"

#include <math.h>
#include <stdio.h>

#include <geektrain/ops.h>

static golden *file;

static int open_file(void **state)
{
    file = golden_open(TEST_GOLDEN_DIR "/ops.gold");
    return 0;
}

static int close_file(void **state)
{
    golden_close(file);
    return 0;
}

static const golden_tensor *named(const char *group, const char *name)
{
    char full[128];
    snprintf(full, sizeof full, "%s/%s", group, name);
    return golden_get(file, full);
}

/* A tensor holding the golden of that name. */
static gt_tensor load(th *h, const char *group, const char *name)
{
    const golden_tensor *g = named(group, name);
    gt_tensor t = th_new(h, g->i32 != NULL ? GT_I32 : GT_F32, g->ndim, g->shape);
    th_set(h, &t, g->f64);
    return t;
}

/* Poisoned, of the golden's shape. */
static gt_tensor like(th *h, const char *group, const char *name)
{
    const golden_tensor *g = named(group, name);
    return th_new(h, GT_F32, g->ndim, g->shape);
}

static gt_tensor zeros(th *h, const char *group, const char *name)
{
    gt_tensor t = like(h, group, name);
    th_fill(h, &t, 0);
    return t;
}

static void expect(th *h, const gt_tensor *got, const char *group, const char *name)
{
    char full[128];
    snprintf(full, sizeof full, "%s/%s", group, name);
    th_compare(h, full, got, golden_get(file, full)->f64, 1);
}

static gt_tensor rows_of(th *h, int64_t n)
{
    gt_tensor rows = th_new(h, GT_I64, TH_SHAPE(n));
    th_iota(h, &rows);
    return rows;
}

static void layernorm(void **state)
{
    const char *g = "layernorm";
    TH_ON_DEVICES(h)
    {
        gt_tensor x = load(&h, g, "x"), residual = load(&h, g, "residual");
        gt_tensor gamma = load(&h, g, "gamma"), beta = load(&h, g, "beta");
        gt_tensor dy = load(&h, g, "dy"), dresidual = load(&h, g, "dresidual");
        gt_tensor y = like(&h, g, "y"), s = like(&h, g, "s"), dx = like(&h, g, "dx");
        gt_tensor mean = th_new(&h, GT_F32, TH_SHAPE(5)), rstd = th_new(&h, GT_F32, TH_SHAPE(5));
        gt_tensor dgamma = zeros(&h, g, "dgamma"), dbeta = zeros(&h, g, "dbeta");
        TH_OK(gt_layernorm_forward(h.ctx, &y, &s, &mean, &rstd, &x, &residual, &gamma, &beta, 1e-5f,
                                   NULL));
        TH_OK(gt_layernorm_backward(h.ctx, &dx, &dgamma, &dbeta, &dy, &dresidual, &s, &gamma, &mean,
                                    &rstd, NULL));
        expect(&h, &s, g, "s");
        expect(&h, &y, g, "y");
        expect(&h, &dx, g, "dx");
        expect(&h, &dgamma, g, "dgamma");
        expect(&h, &dbeta, g, "dbeta");
    }
}

static void rmsnorm(void **state)
{
    const char *g = "rmsnorm";
    TH_ON_DEVICES(h)
    {
        gt_tensor x = load(&h, g, "x"), gamma = load(&h, g, "gamma"), dy = load(&h, g, "dy");
        gt_tensor dresidual = load(&h, g, "dresidual"), rstd = th_new(&h, GT_F32, TH_SHAPE(5));
        gt_tensor y = like(&h, g, "y"), dx = like(&h, g, "dx"), dgamma = zeros(&h, g, "dgamma");
        TH_OK(gt_rmsnorm_forward(h.ctx, &y, NULL, &rstd, &x, NULL, &gamma, 1e-6f, NULL));
        TH_OK(gt_rmsnorm_backward(h.ctx, &dx, &dgamma, &dy, &dresidual, &x, &gamma, &rstd, NULL));
        expect(&h, &y, g, "y");
        expect(&h, &dx, g, "dx");
        expect(&h, &dgamma, g, "dgamma");
    }
}

static void activations(void **state)
{
    TH_ON_DEVICES(h)
    {
        gt_tensor x = load(&h, "gelu", "x"), dy = load(&h, "gelu", "dy");
        gt_tensor y = like(&h, "gelu", "y"), dx = like(&h, "gelu", "dx");
        TH_OK(gt_gelu_forward(h.ctx, &y, &x, NULL));
        TH_OK(gt_gelu_backward(h.ctx, &dx, &dy, &x, NULL));
        expect(&h, &y, "gelu", "y");
        expect(&h, &dx, "gelu", "dx");
        gt_tensor gu = load(&h, "swiglu", "gu"), dgu = like(&h, "swiglu", "dgu");
        gt_tensor out = like(&h, "swiglu", "y"), dout = load(&h, "swiglu", "dy");
        TH_OK(gt_swiglu_forward(h.ctx, &out, &gu, NULL));
        TH_OK(gt_swiglu_backward(h.ctx, &dgu, &dout, &gu, NULL));
        expect(&h, &out, "swiglu", "y");
        expect(&h, &dgu, "swiglu", "dgu");
    }
}

static void embedding(void **state)
{
    const char *g = "embedding";
    TH_ON_DEVICES(h)
    {
        gt_tensor table = load(&h, g, "table"), positions = load(&h, g, "positions");
        gt_tensor ids = load(&h, g, "ids"), dy = load(&h, g, "dy"), y = like(&h, g, "y");
        gt_tensor rows = rows_of(&h, 12);
        gt_tensor dtable = zeros(&h, g, "dtable"), dpositions = zeros(&h, g, "dpositions");
        gt_embedding_params p = GT_EMBEDDING_PARAMS_INIT;
        p.vocab = 11;
        p.seq = 6;
        TH_OK(gt_embedding_forward(h.ctx, &y, &table, &positions, &ids, &rows, &p, NULL));
        TH_OK(gt_embedding_backward(h.ctx, &dtable, &dpositions, &dy, &ids, &rows, &p, NULL));
        expect(&h, &y, g, "y");
        expect(&h, &dtable, g, "dtable");
        expect(&h, &dpositions, g, "dpositions");
    }
}

static void cross_entropy(void **state)
{
    static const char *const groups[] = {"xent_plain", "xent_smoothed", "xent_zloss"};
    TH_ON_DEVICES(h)
    {
        for (int i = 0; i < 3; i++) {
            gt_tensor z = load(&h, groups[i], "logits"), targets = load(&h, groups[i], "targets");
            gt_tensor losses = like(&h, groups[i], "losses");
            gt_tensor stats = th_new(&h, GT_F64, TH_SHAPE(2));
            gt_cross_entropy_params p = GT_CROSS_ENTROPY_PARAMS_INIT;
            p.label_smoothing = named(groups[i], "params")->f32[0];
            p.z_loss = named(groups[i], "params")->f32[1];
            th_fill(&h, &stats, 0);
            TH_OK(gt_cross_entropy(h.ctx, &z, &losses, &stats, &targets, &p, NULL));
            expect(&h, &losses, groups[i], "losses");
            expect(&h, &z, groups[i], "grad");
            TH_TRUE(th_get(&h, &stats)[1] == 6);
        }
    }
}

static void gemm(void **state)
{
    const char *g = "gemm";
    TH_ON_DEVICES(h)
    {
        gt_tensor bias = load(&h, g, "bias"), c = load(&h, g, "c0"), pre = like(&h, g, "pre");
        for (int i = 0; i < 4; i++) {
            gt_tensor a = load(&h, g, i & 1 ? "at" : "a"), b = load(&h, g, i & 2 ? "bt" : "b");
            gt_tensor y = like(&h, g, "ab");
            gt_gemm_params p = GT_GEMM_PARAMS_INIT;
            p.trans_a = (i & 1) != 0;
            p.trans_b = (i & 2) != 0;
            TH_OK(gt_gemm(h.ctx, &y, &a, &b, &p, NULL));
            expect(&h, &y, g, "ab");
            if (i == 0) {
                p.accumulate = true;
                TH_OK(gt_gemm(h.ctx, &c, &a, &b, &p, NULL));
                expect(&h, &c, g, "ab_c0");
                p.accumulate = false;
            }
            p.bias = &bias;
            p.gelu = true;
            p.pre_gelu = &pre;
            TH_OK(gt_gemm(h.ctx, &y, &a, &b, &p, NULL));
            expect(&h, &pre, g, "pre");
            expect(&h, &y, g, "gelu");
        }
    }
}

static void linear(void **state)
{
    const char *g = "linear";
    TH_ON_DEVICES(h)
    {
        gt_tensor x = load(&h, g, "x"), w = load(&h, g, "w"), bias = load(&h, g, "bias");
        gt_tensor dy = load(&h, g, "dy"), y = like(&h, g, "y"), dx = like(&h, g, "dx");
        gt_tensor dw = zeros(&h, g, "dw"), dbias = zeros(&h, g, "dbias");
        TH_OK(gt_linear_forward(h.ctx, &y, &x, &w, &bias, NULL));
        TH_OK(gt_linear_backward(h.ctx, &dx, &dw, &dbias, &dy, &x, &w, NULL));
        expect(&h, &y, g, "y");
        expect(&h, &dx, g, "dx");
        expect(&h, &dw, g, "dw");
        expect(&h, &dbias, g, "dbias");
    }
}

static void attention(void **state)
{
    static const struct {
        const char *name;
        bool causal, masked;
    } cases[] = {{"attention_causal", true, false},
                 {"attention_grouped", true, false},
                 {"attention_cross", false, false},
                 {"attention_masked", false, true}};
    TH_ON_DEVICES(h)
    {
        for (int i = 0; i < 4; i++) {
            const char *g = cases[i].name;
            gt_tensor q = load(&h, g, "q"), k = load(&h, g, "k"), v = load(&h, g, "v");
            gt_tensor dout = load(&h, g, "dout"), out = like(&h, g, "out"),
                      lse = like(&h, g, "lse");
            gt_tensor dq = like(&h, g, "dq"), dk = like(&h, g, "dk"), dv = like(&h, g, "dv");
            gt_tensor mask = th_new(&h, GT_U8, TH_SHAPE(k.shape[0], k.shape[1]));
            gt_attention_params p = GT_ATTENTION_PARAMS_INIT;
            p.b = q.shape[0];
            p.tq = q.shape[1];
            p.tk = k.shape[1];
            p.heads = q.shape[2];
            p.kv_heads = k.shape[2];
            p.head_size = q.shape[3];
            p.causal = cases[i].causal;
            if (cases[i].masked) {
                th_set(&h, &mask, named(g, "key_mask")->f64);
                p.key_mask = &mask;
            }
            TH_OK(gt_attention_forward(h.ctx, &out, &lse, &q, &k, &v, &p, NULL));
            TH_OK(gt_attention_backward(h.ctx, &dq, &dk, &dv, &dout, &out, &lse, &q, &k, &v, &p,
                                        NULL));
            expect(&h, &out, g, "out");
            expect(&h, &lse, g, "lse");
            expect(&h, &dq, g, "dq");
            expect(&h, &dk, g, "dk");
            expect(&h, &dv, g, "dv");
        }
    }
}

static void rope(void **state)
{
    TH_ON_DEVICES(h)
    {
        gt_tensor x = load(&h, "rope", "x"), freq = load(&h, "rope", "freq");
        gt_tensor rows = rows_of(&h, 18);
        TH_OK(gt_rope(h.ctx, &x, &rows, &freq, 24, 3, 9, 1.0f, false, NULL));
        expect(&h, &x, "rope", "y");
        TH_OK(gt_rope(h.ctx, &x, &rows, &freq, 24, 3, 9, 1.0f, true, NULL));
        expect(&h, &x, "rope", "x");
    }
}

/* ---- optimizers: five steps of each
 * ---------------------------------------------------------------*/
typedef struct run {
    th *h;
    gt_tensor p, m, v, u, norms;
    int64_t step;
} run;

static gt_status adamw(run *r, const gt_tensor *grad)
{
    gt_adamw_params p = GT_ADAMW_PARAMS_INIT;
    p.lr = 0.01f;
    p.beta2 = 0.95f;
    p.eps = 1e-6f;
    p.weight_decay = 0.1f;
    p.step = r->step;
    return gt_adamw(r->h->ctx, NULL, &r->p, &r->m, &r->v, grad, &p, NULL);
}

static gt_status adam_l2(run *r, const gt_tensor *grad)
{
    gt_adamw_params p = GT_ADAMW_PARAMS_INIT;
    p.lr = 0.01f;
    p.beta2 = 0.95f;
    p.eps = 1e-6f;
    p.weight_decay = 0.1f;
    p.l2 = true;
    p.step = r->step;
    return gt_adamw(r->h->ctx, NULL, &r->p, &r->m, &r->v, grad, &p, NULL);
}

static gt_status sgd_with(run *r, const gt_tensor *grad, bool nesterov)
{
    gt_sgd_params p = GT_SGD_PARAMS_INIT;
    p.lr = 0.05f;
    p.momentum = 0.9f;
    p.weight_decay = nesterov ? 0.0f : 0.1f;
    p.nesterov = nesterov;
    p.step = r->step;
    return gt_sgd(r->h->ctx, NULL, &r->p, &r->m, grad, &p, NULL);
}

static gt_status sgd(run *r, const gt_tensor *grad)
{
    return sgd_with(r, grad, false);
}

static gt_status sgd_nesterov(run *r, const gt_tensor *grad)
{
    return sgd_with(r, grad, true);
}

static gt_status lion(run *r, const gt_tensor *grad)
{
    gt_lion_params p = GT_LION_PARAMS_INIT;
    p.lr = 0.003f;
    p.weight_decay = 0.1f;
    return gt_lion(r->h->ctx, NULL, &r->p, &r->m, grad, &p, NULL);
}

static gt_status lamb(run *r, const gt_tensor *grad)
{
    gt_adamw_params p = GT_ADAMW_PARAMS_INIT;
    p.beta2 = 0.95f;
    p.eps = 1e-6f;
    p.weight_decay = 0.1f;
    p.step = r->step;
    th_fill(r->h, &r->norms, 0);
    gt_status st = gt_lamb_update(r->h->ctx, &r->u, &r->m, &r->v, &r->norms, &r->p, grad, &p, NULL);
    if (st != GT_OK) {
        return st;
    }
    double *norms = th_get(r->h, &r->norms);
    float trust = (float)sqrt(norms[0] / norms[1]);
    return gt_lamb_apply(r->h->ctx, NULL, &r->p, &r->u, 0.01f, trust, NULL);
}

static void optimizers(void **state)
{
    static const struct {
        const char *name;
        gt_status (*apply)(run *r, const gt_tensor *grad);
    } all[] = {{"adamw", adamw}, {"adam_l2", adam_l2}, {"sgd", sgd}, {"sgd_nesterov", sgd_nesterov},
               {"lion", lion},   {"lamb", lamb}};
    TH_ON_DEVICES(h)
    {
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
            gt_tensor grads = load(&h, "optimizer", "grads");
            run r = {.h = &h,
                     .p = load(&h, "optimizer", "start"),
                     .m = zeros(&h, "optimizer", "start"),
                     .v = zeros(&h, "optimizer", "start"),
                     .u = zeros(&h, "optimizer", "start"),
                     .norms = th_new(&h, GT_F64, TH_SHAPE(2))};
            int64_t n = gt_tensor_numel(&r.p);
            for (r.step = 1; r.step <= grads.shape[0]; r.step++) {
                gt_tensor grad;
                TH_OK(gt_tensor_slice(&grad, &grads, (r.step - 1) * n, n));
                TH_OK(all[i].apply(&r, &grad));
            }
            expect(&h, &r.p, "optimizer", all[i].name);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layernorm),  cmocka_unit_test(rmsnorm),   cmocka_unit_test(activations),
        cmocka_unit_test(embedding),  cmocka_unit_test(attention), cmocka_unit_test(rope),
        cmocka_unit_test(gemm),       cmocka_unit_test(linear),    cmocka_unit_test(cross_entropy),
        cmocka_unit_test(optimizers),
    };
    return cmocka_run_group_tests_name("golden_ops", tests, open_file, close_file);
}
