"""What the tests do with Python's client: kubeconfig from KUBECONFIG, namespace as argument.

Each line on stdout is an event for the test; each line on stdin is its permission to go on.
"""
import sys
import threading

from kubernetes import client, config, watch


def say(*words):
    print(*words, flush=True)


def load():
    # Each call loads the kubeconfig, and with it runs the plugin.
    api = config.new_client_from_config()
    return api, client.CoreV1Api(api)


def whoami(api):
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    answer = api.call_api("/apis/authentication.k8s.io/v1/selfsubjectreviews", "POST",
                          body=review, response_type="object", auth_settings=["BearerToken"])
    return answer[0]["status"]["userInfo"]["username"]


namespace = sys.argv[1]
api, core = load()
say("user", whoami(api))
listed = core.list_namespaced_config_map(namespace)
say("listed", *sorted(m.metadata.name for m in listed.items))


def follow():
    events = watch.Watch().stream(core.list_namespaced_config_map, namespace,
                                  resource_version=listed.metadata.resource_version, timeout_seconds=60)
    for event in events:
        say("event", event["type"], event["object"].metadata.name)
        if event["object"].metadata.name == "last":
            return


follower = threading.Thread(target=follow)
follower.start()
_, own = load()
own.create_namespaced_config_map(namespace, {"metadata": {"name": "made-by-python"}, "data": {"k": "v"}})
say("created")
follower.join()

sys.stdin.readline()  # the proxy has ended
try:
    core.list_namespaced_config_map(namespace, _request_timeout=10)
    say("again ok")
except Exception as e:
    say("again", type(e).__name__)
_, core = load()
core.list_namespaced_config_map(namespace)
say("loaded again ok")
