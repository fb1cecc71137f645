/* SPDX-License-Identifier: Apache-2.0
 *
 * Shows a pipeline schedule: timeline, bubble, activations held.
 *
 *     show_schedule 1f1b 4 8                   4 ranks, 8 microbatches
 *     show_schedule interleaved 4 8 -v 2       2 chunks per rank
 *     show_schedule zb-h2 8 24 -c 18.5,18.1,9.3,0.6 -l 16 -s zb.svg -o zb.csv
 *     show_schedule mine.csv                   a schedule of your own
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <geektrain/schedule.h>

static int usage(void)
{
    fputs(
        "usage: show_schedule NAME|FILE.csv [RANKS MICROBATCHES] [options]\n"
        "  NAME          gpipe, 1f1b, interleaved, zb-h1, zb-h2, zb-v\n"
        "  -v CHUNKS     stages per rank\n"
        "  -c F,I,W,T    times of forward, backward's input and weight part of all of a rank's\n"
        "                stages, and of one transfer (1,1,1,0); zb-* arrange themselves for them\n"
        "  -l LIMIT      zb-h1, zb-h2: most activations held by a rank\n"
        "  -w COLUMNS    width of the timeline (as wide as it needs)\n"
        "  -s FILE.svg   draws the timeline\n"
        "  -o FILE.csv   writes the lists\n",
        stderr);
    return 2;
}

static int failed(void)
{
    fprintf(stderr, "show_schedule: %s\n", gt_last_error());
    return 1;
}

static int show_ranks(const gt_schedule *s, gt_stage_cost cost)
{
    gt_rank_report *ranks = calloc((size_t)gt_schedule_ranks(s), sizeof(*ranks));
    gt_schedule_report all;
    if (!ranks || gt_schedule_simulate(&all, ranks, s, &cost, 1) != GT_OK) {
        free(ranks);
        return failed();
    }
    printf("\n%4s %10s %10s %10s %8s %6s %9s\n", "rank", "start", "end", "busy", "idle %", "live",
           "buffers");
    for (int r = 0; r < gt_schedule_ranks(s); r++) {
        const gt_rank_report *k = &ranks[r];
        printf("%4d %10.4g %10.4g %10.4g %8.1f %6d %9d\n", r, k->start, k->end, k->busy,
               100 * (1 - k->busy / all.makespan), k->peak_live,
               k->input_buffers + k->output_buffers + k->gradient_buffers +
                   k->input_gradient_buffers);
    }
    printf("\nmakespan %.6g, of it bubble %.6g (%.1f %%)\n"
           "steps that follow one another without a barrier: %.6g each (%.1f %% bubble)\n"
           "at most %d activations held by a rank\n",
           all.makespan, all.bubble, 100 * all.bubble_share, all.period,
           100 * (1 - all.compute / all.period), all.peak_live);
    free(ranks);
    return 0;
}

int main(int argc, char **argv)
{
    gt_schedule_params params = GT_SCHEDULE_PARAMS_INIT;
    gt_stage_cost cost = {1, 1, 1, 0, 0};
    const char *svg = NULL, *csv = NULL;
    int width = 0, option;
    while ((option = getopt(argc, argv, "v:c:l:w:s:o:")) != -1) {
        switch (option) {
        case 'v':
            params.chunks = atoi(optarg);
            break;
        case 'c':
            if (sscanf(optarg, "%lf,%lf,%lf,%lf", &cost.forward, &cost.backward_input,
                       &cost.backward_weight, &cost.transfer) != 4) {
                return usage();
            }
            break;
        case 'l':
            params.max_live = atoi(optarg);
            break;
        case 'w':
            width = atoi(optarg);
            break;
        case 's':
            svg = optarg;
            break;
        case 'o':
            csv = optarg;
            break;
        default:
            return usage();
        }
    }
    if (optind + 1 != argc && optind + 3 != argc) {
        return usage();
    }
    params.name = argv[optind];
    if (optind + 3 == argc) {
        params.ranks = atoi(argv[optind + 1]);
        params.microbatches = atoi(argv[optind + 2]);
    }

    /* Two passes: a rank's time is shared by its chunks, whose number the schedule knows. */
    gt_schedule *s = NULL;
    if (gt_schedule_create_params(&s, &params) != GT_OK) {
        return failed();
    }
    int stages = gt_schedule_stages(s), chunks = gt_schedule_chunks(s), result = 1;
    gt_stage_cost *costs = calloc((size_t)stages, sizeof(*costs));
    cost.forward /= chunks;
    cost.backward_input /= chunks;
    cost.backward_weight /= chunks;
    for (int i = 0; costs && i < stages; i++) {
        costs[i] = cost;
    }
    gt_schedule_destroy(&s);
    params.cost = costs;
    if (!costs || gt_schedule_create_params(&s, &params) != GT_OK ||
        gt_schedule_print(s, &cost, 1, width, stdout) != GT_OK) {
        failed();
    } else {
        result = show_ranks(s, cost);
    }
    if (result == 0 && ((svg && gt_schedule_write_svg(s, &cost, 1, svg) != GT_OK) ||
                        (csv && gt_schedule_write_csv(s, csv, true) != GT_OK))) {
        result = failed();
    }
    gt_schedule_destroy(&s);
    free(costs);
    return result;
}
