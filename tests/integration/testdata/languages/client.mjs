// What the tests do with JavaScript's client: kubeconfig from KUBECONFIG, namespace as argument, the library's entry
// file in CLIENT_NODE. Each line on stdout is an event for the test; each line on stdin is its permission to go on.
import { once } from 'node:events';

const k8s = await import(process.env.CLIENT_NODE);
const say = (...words) => console.log(...words);

function load() {
  const config = new k8s.KubeConfig();
  config.loadFromDefault();
  return { config, core: config.makeApiClient(k8s.CoreV1Api), auth: config.makeApiClient(k8s.AuthenticationV1Api) };
}

const namespace = process.argv[2];
const { config, core, auth } = load();
const review = await auth.createSelfSubjectReview({ body: { apiVersion: 'authentication.k8s.io/v1', kind: 'SelfSubjectReview' } });
say('user', review.status.userInfo.username);
const listed = await core.listNamespacedConfigMap({ namespace });
say('listed', ...listed.items.map((m) => m.metadata.name).sort());

let ended;
const last = new Promise((resolve, reject) => { ended = { resolve, reject }; });
const watch = await new k8s.Watch(config).watch(
  `/api/v1/namespaces/${namespace}/configmaps`,
  { resourceVersion: listed.metadata.resourceVersion },
  (type, object) => {
    say('event', type, object.metadata.name);
    if (object.metadata.name === 'last') ended.resolve();
  },
  (err) => ended.reject(err ?? new Error('the watch ended')),
);
await core.createNamespacedConfigMap({ namespace, body: { metadata: { name: 'made-by-javascript' }, data: { k: 'v' } } });
say('created');
await last;
watch.abort();

await once(process.stdin, 'data'); // the proxy has ended
try {
  await core.listNamespacedConfigMap({ namespace });
  say('again ok');
} catch (e) {
  say('again', e.code ?? e.name);
}
await load().core.listNamespacedConfigMap({ namespace });
say('loaded again ok');
process.exit(0);
