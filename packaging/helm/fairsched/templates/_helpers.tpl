{{- define "fairsched.name" -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{- define "fairsched.selector" -}}
app.kubernetes.io/name: fairsched
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "fairsched.labels" -}}
{{ include "fairsched.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- /* Another name than the agents': their Service and their DaemonSet must not take these pods for theirs. */ -}}
{{- define "fairsched.plugin.selector" -}}
app.kubernetes.io/name: fairsched-device-plugin
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "fairsched.plugin.labels" -}}
{{ include "fairsched.plugin.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- define "fairsched.account" -}}
{{- .Values.serviceAccount.name | default (include "fairsched.name" .) -}}
{{- end -}}

{{- /* The agents' configuration: config, and what other values come to there. */ -}}
{{- define "fairsched.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- if .Values.policies.enabled -}}
{{- if not (dig "kubernetes" "watch_pods" false $config) -}}
{{- fail "policies.enabled: they speak of namespaces and pods: set config.kubernetes.watch_pods" -}}
{{- end -}}
{{- $config = mustMergeOverwrite $config (dict "kubernetes" (dict "watch_policies" true)) -}}
{{- end -}}
{{- if .Values.dra.enabled -}}
{{- $config = mustMergeOverwrite $config (dict "kubernetes" (dict "dra" (dict "enabled" true))) -}}
{{- end -}}
{{- toYaml $config -}}
{{- end -}}

{{- /* Whether anything of the agent asks the API server. */ -}}
{{- define "fairsched.asks" -}}
{{- if or (dig "escalation" "enabled" false .Values.config) (dig "kubernetes" "watch_pods" false .Values.config) .Values.dra.enabled -}}
yes
{{- end -}}
{{- end -}}

{{- /* The exporter's port; empty where there is no exporter. */ -}}
{{- define "fairsched.port" -}}
{{- with dig "metrics" "listen" "" .Values.config -}}{{- . | splitList ":" | last -}}{{- end -}}
{{- end -}}
