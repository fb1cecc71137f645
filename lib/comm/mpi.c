/* SPDX-License-Identifier: Apache-2.0
 *
 * Transport mpi, the only file that knows MPI.
 *
 * Every call of MPI is made under one lock of the process: it keeps out the finalisation by a host
 * program, and serialises transports where the thread level wants it. Below MPI_THREAD_MULTIPLE no
 * thread of ours calls MPI; below MPI_THREAD_SERIALIZED only the main thread may call us.
 *
 * MPI is finalised at exit, if this library initialised it, no communicator is left, and every rank
 * of a broken world has said farewell; otherwise the launcher ends the job, since waiting for a
 * rank that has died would hang. A rank that leaves tells the others and waits a little for them: a
 * message that arrives after its communicator was freed would find the next one.
 */
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm/world.h"
#include "core/env.h"

#define FAREWELL_S 2.0 /* how long a leaving rank waits for the others             */
#define GIVE_UP_S 0.2  /* how long all given-up messages together get to come home */

enum { SENDING = 1, RECEIVING };

typedef struct mpi_transport {
    gti_transport base;
    struct mpi_transport *next;
    MPI_Comm comm;
    bool short_tags;
    bool finalised; /* the host was first */
    bool *gone;     /* [P]                */
    double give_up_until;
    gti_notice incoming;
    MPI_Request incoming_request;
    gti_notice outgoing[2];         /* failure, left */
    MPI_Request *outgoing_requests; /* [2 P] */
} mpi_transport;

static const gti_transport_ops gti_mpi_ops;

/* Of the process, as MPI is. */
static pthread_mutex_t process_lock = PTHREAD_MUTEX_INITIALIZER;
static mpi_transport *transports;
static bool hooked, abandoned;

static gt_status gti_mpi_status(int code, const char *call)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0, class = 0;
    if (code == MPI_SUCCESS) {
        return GT_OK;
    }
    MPI_Error_class(code, &class);
    MPI_Error_string(code, text, &length);
    return GT_FAIL(class == MPI_ERR_TRUNCATE ? GT_ERR_MISMATCH : GT_ERR_COMM, "%s: %s", call, text);
}

static gt_status lock(mpi_transport *m)
{
    pthread_mutex_lock(&process_lock);
    if (m->finalised) {
        pthread_mutex_unlock(&process_lock);
        return GT_FAIL(GT_ERR_STATE,
                       "MPI has been finalised before the communicator's destruction");
    }
    return GT_OK;
}

static void unlock(void)
{
    pthread_mutex_unlock(&process_lock);
}

static void nap(double seconds)
{
    struct timespec t = {.tv_nsec = (long)(seconds * 1e9)};
    nanosleep(&t, NULL);
}

/* ---- messages ----------------------------------------------------------------------------------
 */
_Static_assert(sizeof(MPI_Request) <= sizeof(void *), "a request fits gti_request.native");

static MPI_Request get_request(const gti_request *request)
{
    MPI_Request r;
    memcpy(&r, &request->native, sizeof r);
    return r;
}

static void set_request(gti_request *request, MPI_Request r)
{
    memcpy(&request->native, &r, sizeof r);
}

/* MPIs with short tags have room for 128 communicators and tags below 16384. */
#define SHORT_ID_BITS 7
#define SHORT_TAG_BITS 14

static gt_status tag_of(const mpi_transport *m, int key, int *tag)
{
    if (!m->short_tags) {
        *tag = key;
        return GT_OK;
    }
    int channel = key >> (GTI_COMM_ID_BITS + GTI_TAG_BITS);
    int id = key >> GTI_TAG_BITS & (GTI_COMM_IDS - 1), user = key & (GTI_TAGS - 1);
    if (id >= 1 << SHORT_ID_BITS || user >= 1 << SHORT_TAG_BITS) {
        return GT_FAIL(GT_ERR_UNSUPPORTED,
                       "this MPI's tags are short: communicator %d, tag %d, wanted below %d and %d",
                       id, user, 1 << SHORT_ID_BITS, 1 << SHORT_TAG_BITS);
    }
    *tag = channel << (SHORT_ID_BITS + SHORT_TAG_BITS) | id << SHORT_TAG_BITS | user;
    return GT_OK;
}

static gt_status mpi_isend(gti_transport *t, gti_request *request)
{
    mpi_transport *m = (mpi_transport *)t;
    MPI_Request r;
    int tag = 0;
    GT_TRY(tag_of(m, request->key, &tag));
    GT_TRY(lock(m));
    int code =
        MPI_Isend(request->buffer, (int)request->bytes, MPI_BYTE, request->peer, tag, m->comm, &r);
    unlock();
    set_request(request, r);
    request->state = SENDING;
    return gti_mpi_status(code, "MPI_Isend");
}

static gt_status mpi_irecv(gti_transport *t, gti_request *request)
{
    mpi_transport *m = (mpi_transport *)t;
    MPI_Request r;
    int tag = 0;
    GT_TRY(tag_of(m, request->key, &tag));
    GT_TRY(lock(m));
    int code =
        MPI_Irecv(request->buffer, (int)request->bytes, MPI_BYTE, request->peer, tag, m->comm, &r);
    unlock();
    set_request(request, r);
    request->state = RECEIVING;
    return gti_mpi_status(code, "MPI_Irecv");
}

static gt_status mpi_test(gti_transport *t, gti_request *request, bool *done)
{
    mpi_transport *m = (mpi_transport *)t;
    MPI_Request r = get_request(request);
    MPI_Status status;
    int flag = 0, count = 0;
    GT_TRY(lock(m));
    int code = MPI_Test(&r, &flag, &status);
    if (code == MPI_SUCCESS && flag && request->state == RECEIVING) {
        code = MPI_Get_count(&status, MPI_BYTE, &count);
    }
    unlock();
    set_request(request, r);
    if (code != MPI_SUCCESS) {
        *done = true; /* MPI has freed the request */
        return gti_mpi_status(code, "MPI_Test");
    }
    *done = flag;
    request->received = (size_t)count;
    return GT_OK;
}

static void mpi_give_up(gti_transport *t, gti_request *request)
{
    mpi_transport *m = (mpi_transport *)t;
    MPI_Request r = get_request(request);
    if (m->give_up_until == 0) {
        m->give_up_until = gti_now() + GIVE_UP_S;
    }
    if (lock(m) != GT_OK) {
        return;
    }
    if (r != MPI_REQUEST_NULL && request->state == RECEIVING) {
        MPI_Cancel(&r);
    }
    int flag = r == MPI_REQUEST_NULL;
    do {
        if (!flag && MPI_Test(&r, &flag, MPI_STATUS_IGNORE) != MPI_SUCCESS) {
            flag = 1;
        }
        if (!flag) {
            nap(100e-6);
        }
    } while (!flag && gti_now() < m->give_up_until);
    unlock();
}

/* ---- notices -----------------------------------------------------------------------------------
 */
static int control_tag(const mpi_transport *m)
{
    int tag = 0;
    (void)tag_of(m, gti_key(GTI_CHANNEL_CONTROL, 0, 0), &tag);
    return tag;
}

static int expect_notice(mpi_transport *m)
{
    return MPI_Irecv(&m->incoming, (int)sizeof m->incoming, MPI_BYTE, MPI_ANY_SOURCE,
                     control_tag(m), m->comm, &m->incoming_request);
}

static void mpi_bind(gti_transport *t, void (*arrived)(void *user), void *user)
{
    (void)t;
    (void)arrived;
    (void)user;
}

static void mpi_notify(gti_transport *t, const gti_notice *notice)
{
    mpi_transport *m = (mpi_transport *)t;
    int slot = notice->kind == GTI_NOTICE_FAILURE ? 0 : 1;
    if (m->outgoing[slot].kind != GTI_NOTICE_NONE || lock(m) != GT_OK) {
        return;
    }
    m->outgoing[slot] = *notice;
    for (int r = 0; r < t->size; r++) {
        if (r != t->rank) {
            MPI_Isend(&m->outgoing[slot], (int)sizeof *notice, MPI_BYTE, r, control_tag(m), m->comm,
                      &m->outgoing_requests[slot * t->size + r]);
        }
    }
    unlock();
}

static bool mpi_poll(gti_transport *t, gti_notice *notice)
{
    mpi_transport *m = (mpi_transport *)t;
    int flag = 0;
    pthread_mutex_lock(&process_lock);
    if (!m->finalised && m->incoming_request != MPI_REQUEST_NULL &&
        MPI_Test(&m->incoming_request, &flag, MPI_STATUS_IGNORE) == MPI_SUCCESS && flag) {
        *notice = m->incoming;
        expect_notice(m);
    }
    unlock();
    if (flag && notice->kind == GTI_NOTICE_LEFT && notice->rank >= 0 && notice->rank < t->size) {
        m->gone[notice->rank] = true;
    }
    return flag;
}

/* ---- end ---------------------------------------------------------------------------------------
 */
static bool outgoing_done(mpi_transport *m)
{
    int flag = 0;
    if (lock(m) != GT_OK) {
        return true;
    }
    MPI_Testall(2 * m->base.size, m->outgoing_requests, &flag, MPI_STATUSES_IGNORE);
    unlock();
    return flag;
}

static bool all_gone(const mpi_transport *m)
{
    for (int r = 0; r < m->base.size; r++) {
        if (r != m->base.rank && !m->gone[r]) {
            return false;
        }
    }
    return true;
}

static void stop_listening(mpi_transport *m)
{
    if (m->incoming_request != MPI_REQUEST_NULL) {
        MPI_Cancel(&m->incoming_request);
        MPI_Wait(&m->incoming_request, MPI_STATUS_IGNORE);
    }
}

static void forget(mpi_transport *m)
{
    for (mpi_transport **at = &transports; *at != NULL; at = &(*at)->next) {
        if (*at == m) {
            *at = m->next;
            return;
        }
    }
}

static void mpi_destroy(gti_transport *t, bool broken)
{
    mpi_transport *m = (mpi_transport *)t;
    gti_notice left = {.kind = GTI_NOTICE_LEFT, .rank = t->rank}, notice;
    double until = gti_now() + FAREWELL_S;
    mpi_notify(t, &left);
    bool everybody = false, sent = false;
    while (!(everybody && sent) && !m->finalised && gti_now() < until) {
        while (mpi_poll(t, &notice)) {
        }
        everybody = all_gone(m);
        sent = outgoing_done(m);
        if (!(everybody && sent)) {
            nap(100e-6);
        }
    }
    pthread_mutex_lock(&process_lock);
    forget(m);
    if (!m->finalised) {
        stop_listening(m);
        abandoned = abandoned || (broken && !(everybody && sent));
        if (everybody && sent && !broken) {
            MPI_Comm_free(&m->comm);
        }
    }
    bool keep = !sent && !m->finalised; /* MPI still reads the notices */
    unlock();
    if (!keep) {
        free(m->outgoing_requests);
        free(m->gone);
        free(m);
    }
}

/* MPI calls it first thing in MPI_Finalize, whoever calls that. */
static int on_finalize(MPI_Comm comm, int keyval, void *value, void *extra)
{
    (void)comm;
    (void)keyval;
    (void)value;
    (void)extra;
    pthread_mutex_lock(&process_lock);
    for (mpi_transport *m = transports; m != NULL; m = m->next) {
        stop_listening(m);
        m->finalised = true;
    }
    unlock();
    return MPI_SUCCESS;
}

static void finalize_at_exit(void)
{
    int finalised = 0;
    MPI_Finalized(&finalised);
    if (!finalised && !abandoned && transports == NULL) {
        MPI_Finalize();
    }
}

/* ---- creation ----------------------------------------------------------------------------------
 */
static gt_status start_mpi(int *level)
{
    int initialised = 0, finalised = 0;
    MPI_Finalized(&finalised);
    if (finalised) {
        return GT_FAIL(GT_ERR_STATE, "MPI has been finalised, it cannot be used again");
    }
    MPI_Initialized(&initialised);
    if (!initialised) {
        GT_TRY(gti_mpi_status(MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, level),
                              "MPI_Init_thread"));
        atexit(finalize_at_exit);
    }
    GT_TRY(gti_mpi_status(MPI_Query_thread(level), "MPI_Query_thread"));
    if (!hooked) {
        int key = 0;
        GT_TRY(
            gti_mpi_status(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, on_finalize, &key, NULL),
                           "MPI_Comm_create_keyval"));
        GT_TRY(gti_mpi_status(MPI_Comm_set_attr(MPI_COMM_SELF, key, NULL), "MPI_Comm_set_attr"));
        hooked = true;
    }
    return GT_OK;
}

static gt_status check_thread(int level)
{
    int is_main = 1;
    if (level < MPI_THREAD_SERIALIZED) {
        MPI_Is_thread_main(&is_main);
    }
    if (!is_main) {
        return GT_FAIL(GT_ERR_STATE,
                       "MPI was initialised so that only the main thread may call it; initialise "
                       "it with MPI_THREAD_MULTIPLE, or call from the main thread");
    }
    return GT_OK;
}

static gt_status mpi_enter(gti_transport *t)
{
    mpi_transport *m = (mpi_transport *)t;
    int level = 0;
    GT_TRY(lock(m));
    if (t->threaded) {
        unlock();
        return GT_OK;
    }
    MPI_Query_thread(&level);
    gt_status st = check_thread(level);
    unlock();
    return st;
}

/* Until the request is done, or the moment has passed. The lock is free between two looks: another
 * thread may be at the same with another communicator, and the ranks need not come to the two in
 * one order. */
static gt_status await(MPI_Request *request, const char *call, double until, bool *done)
{
    *done = false;
    for (int tries = 0; !*done; tries++) {
        int flag = 0, finalised = 0;
        pthread_mutex_lock(&process_lock);
        MPI_Finalized(&finalised);
        int code = finalised ? MPI_SUCCESS : MPI_Test(request, &flag, MPI_STATUS_IGNORE);
        gt_status st = gti_mpi_status(code, call);
        unlock();
        if (st == GT_OK && finalised) {
            st = GT_FAIL(GT_ERR_STATE, "MPI was finalised while a communicator was created");
        }
        GT_TRY(st);
        *done = flag;
        if (!*done && gti_now() > until) {
            return GT_OK;
        }
        if (!*done && tries > 100) {
            nap(50e-6);
        }
    }
    return GT_OK;
}

/* A duplicate, so that messages of the host cannot match ours. The duplication cannot be given up,
 * so everybody's arrival is awaited first. */
static gt_status duplicate(MPI_Comm of, double timeout_s, MPI_Comm *out)
{
    MPI_Request request;
    double until = gti_now() + timeout_s;
    bool done;
    pthread_mutex_lock(&process_lock);
    gt_status st = gti_mpi_status(MPI_Ibarrier(of, &request), "MPI_Ibarrier");
    unlock();
    GT_TRY(st);
    GT_TRY(await(&request, "MPI_Ibarrier", until, &done));
    if (done) {
        pthread_mutex_lock(&process_lock);
        st = gti_mpi_status(MPI_Comm_idup(of, out, &request), "MPI_Comm_idup");
        unlock();
        GT_TRY(st);
        GT_TRY(await(&request, "MPI_Comm_idup", until + timeout_s, &done));
    }
    if (!done) {
        pthread_mutex_lock(&process_lock);
        abandoned = true;
        unlock();
        return GT_FAIL(GT_ERR_TIMEOUT,
                       "not every rank of the MPI communicator has come within %g s", timeout_s);
    }
    return GT_OK;
}

static gt_status check_tags(bool *short_tags)
{
    int *limit = NULL, found = 0;
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &limit, &found);
    int wanted = (1 << (2 + SHORT_ID_BITS + SHORT_TAG_BITS)) - 1;
    if (!found || *limit < wanted) {
        return GT_FAIL(GT_ERR_UNSUPPORTED, "this MPI has tags up to %d, wanted %d",
                       found ? *limit : 0, wanted);
    }
    *short_tags = *limit < 0x7fffffff;
    return GT_OK;
}

static void free_parts(mpi_transport *m)
{
    if (m != NULL) {
        free(m->gone);
        free(m->outgoing_requests);
        free(m);
    }
}

static gt_status make(mpi_transport **out, int rank, int size, int level)
{
    mpi_transport *m = calloc(1, sizeof *m);
    if (m != NULL) {
        m->gone = calloc((size_t)size, sizeof *m->gone);
        m->outgoing_requests = malloc(2 * (size_t)size * sizeof *m->outgoing_requests);
    }
    if (m == NULL || m->gone == NULL || m->outgoing_requests == NULL) {
        free_parts(m);
        return GT_FAIL(GT_ERR_MEMORY, "no memory for the mpi transport");
    }
    for (int i = 0; i < 2 * size; i++) {
        m->outgoing_requests[i] = MPI_REQUEST_NULL;
    }
    m->base = (gti_transport){.ops = &gti_mpi_ops,
                              .rank = rank,
                              .size = size,
                              .polled = true,
                              .threaded = level >= MPI_THREAD_MULTIPLE};
    m->incoming_request = MPI_REQUEST_NULL;
    *out = m;
    return GT_OK;
}

/* The lock is held. */
static gt_status begin(mpi_transport **out, void *mpi_comm, MPI_Comm *of)
{
    int level = 0, rank = 0, size = 0;
    GT_TRY(start_mpi(&level));
    GT_TRY(check_thread(level));
    *of = mpi_comm != NULL ? *(MPI_Comm *)mpi_comm : MPI_COMM_WORLD;
    if (*of == MPI_COMM_NULL) {
        return GT_FAIL(GT_ERR_ARGUMENT, "mpi_comm is MPI_COMM_NULL");
    }
    GT_TRY(gti_mpi_status(MPI_Comm_rank(*of, &rank), "MPI_Comm_rank"));
    GT_TRY(gti_mpi_status(MPI_Comm_size(*of, &size), "MPI_Comm_size"));
    bool short_tags;
    GT_TRY(check_tags(&short_tags));
    GT_TRY(make(out, rank, size, level));
    (*out)->short_tags = short_tags;
    return GT_OK;
}

/* The lock is held. */
static gt_status listen(mpi_transport *m)
{
    MPI_Comm_set_errhandler(m->comm, MPI_ERRORS_RETURN);
    GT_TRY(gti_mpi_status(expect_notice(m), "MPI_Irecv"));
    m->next = transports;
    transports = m;
    return GT_OK;
}

gt_status gti_mpi_transport(gti_transport **out, void *mpi_comm, double timeout_s)
{
    mpi_transport *m = NULL;
    MPI_Comm of = MPI_COMM_NULL;
    pthread_mutex_lock(&process_lock);
    gt_status st = begin(&m, mpi_comm, &of);
    unlock();
    GT_TRY(st);
    st = duplicate(of, timeout_s, &m->comm);
    if (st == GT_OK) {
        pthread_mutex_lock(&process_lock);
        st = listen(m);
        unlock();
    }
    if (st != GT_OK) {
        if (st != GT_ERR_TIMEOUT) { /* else MPI may still write into it */
            free_parts(m);
        }
        return st;
    }
    *out = &m->base;
    return GT_OK;
}

bool gti_mpi_wanted(void)
{
    int initialised = 0, finalised = 0;
    MPI_Initialized(&initialised);
    MPI_Finalized(&finalised);
    return (initialised && !finalised) || gti_env(GTI_ENV_LAUNCHED_OMPI) != NULL ||
           gti_env(GTI_ENV_LAUNCHED_PMIX) != NULL || gti_env(GTI_ENV_LAUNCHED_PMI) != NULL;
}

static const gti_transport_ops gti_mpi_ops = {
    .name = "mpi",
    .isend = mpi_isend,
    .irecv = mpi_irecv,
    .test = mpi_test,
    .give_up = mpi_give_up,
    .bind = mpi_bind,
    .notify = mpi_notify,
    .poll = mpi_poll,
    .enter = mpi_enter,
    .destroy = mpi_destroy,
};
